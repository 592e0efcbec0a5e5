// What a problem costs, whatever computes it: the formulas behind explain, bench and the documents.
//
//   forward   2 d + 2 dv FLOPs per visible pair and query head (scores, weighted values)
//   backward  6 d + 4 dv                       (scores again, dP, dV, dQ, dK)
//
// with d = head_dim and dv = head_dim_v; a multiply and an add are two FLOPs, exponentials are not
// counted. Bytes are the least that must move: what takes part in a visible pair read once, every
// output written once.
#pragma once

#include <sirdar/plan.hpp>

#include <span>

#include "core/memory.h"
#include "shared/mask.h"

namespace sirdar {

struct SequenceLengths {
  int64_t q = 0, k = 0;
};

struct Cost {
  Wide visible_pairs = 0;  // over the batch and the query heads; a legal problem fits 128 bits
  double flops = 0;
  double bytes_read = 0, bytes_written = 0;
  // False where lengths were not given or a mask is known only when it is read (documents, tensors,
  // expressions, a bias that may be -inf): then all is counted from what the structured masks show
  // at full lengths.
  bool is_exact = true;
  // False where lengths were not given: what they make of a mask may be more than at full lengths.
  bool is_upper_bound = true;

  double bytes() const { return bytes_read + bytes_written; }
};

// What there is to read, compute and write, over the batch and the heads.
struct Work {
  Wide pairs = 0;                 // visible, of query heads
  double rows_q = 0, rows_k = 0;  // rows of q and of k, of query and of K/V heads
  double seen_q = 0, seen_k = 0;  // those of them that are part of a visible pair
};
Cost cost_of(const Problem& problem, const Work& work);

// Pairs (i, j) with i in [0, seqlen_q) that the mask shows; in closed form.
Wide visible_pairs(const StructuredMask& mask, int64_t seqlen_q);
// Adds one sequence, of all heads, where nothing but `mask` hides a pair.
void add_sequence(const Problem& problem, const StructuredMask& mask, int64_t seqlen_q, Work& work);

// Without lengths, every sequence is taken to be as long as it may be; a ragged side shares its
// total evenly, and the lengths are known where it is full.
Cost cost_of(const Problem& problem, std::span<const SequenceLengths> lengths = {});

// What a machine can do at most.
struct Peaks {
  double flops_per_s = 0;
  double bytes_per_s = 0;
};
// The maker's figures for a recorded GPU; nothing for CPUs, whose clocks and memory differ.
std::optional<Peaks> recorded_peaks(const Device& device, DType dtype);

// The least time the problem can take.
double roofline_seconds(const Cost& cost, const Peaks& peaks);

}  // namespace sirdar
