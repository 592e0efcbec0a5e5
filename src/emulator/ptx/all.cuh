// Every chapter of ptx/.
#pragma once

#include "ptx/base.cuh"
#include "ptx/fence.cuh"
#include "ptx/grid.cuh"
#include "ptx/math.cuh"
#include "ptx/matrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/registers.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"
#include "ptx/wgmma.cuh"
