// The interface between the planner and whatever computes. Adding an implementation is a folder and
// one line in registry.cc.
#pragma once

#include "core/last_args.h"
#include "plan/kernel_source.h"

#include <sirdar/plan.hpp>

#include <array>
#include <cstring>
#include <span>
#include <type_traits>

namespace sirdar {

// An implementation's own config struct as bytes: the planner copies, compares and prints it
// without knowing its fields.
struct Config {
  std::array<std::byte, 96> bytes{};

  template <class T>
  static Config of(const T& fields) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(bytes));
    Config config;
    std::memcpy(config.bytes.data(), &fields, sizeof(T));
    return config;
  }
  template <class T>
  T as() const {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(bytes));
    T fields;
    std::memcpy(&fields, bytes.data(), sizeof(T));
    return fields;
  }
  bool operator==(const Config&) const = default;
};

struct Implementation {
  std::string_view name;   // "cpu.forward"
  FeatureSet understands;  // a problem with any other feature is refused before supports() is asked
  std::string_view note = {};  // what explain() says of it besides, in a line
  bool is_reference = false;  // chosen only when named, or when PlanOptions::allow_reference is set
  // ok, or the reason in words. Pure: depends on the facts given, so it can be asked for any
  // machine.
  Status (*supports)(const Problem&, const Device&);
  Result<Config> (*configure)(const Problem&, const Device&, const PlanOptions&);
  std::string (*print)(const Config&);  // "isa=avx512 block_m=128"
  // Whether query heads that share a K/V head share tiles, and why, in a line; "": there are none.
  // null: nothing is packed.
  std::string (*packing)(const Problem&, const Config&) = nullptr;
  // Whether the keys of a query block are split among items, and why, in a line; null: never.
  std::string (*splitting)(const Problem&, const Config&) = nullptr;
  size_t (*workspace_bytes)(const Problem&, const Config&);
  // Made once for a plan and handed to every run in Plan::State::prepared; null: nothing.
  std::shared_ptr<const void> (*prepare)(const Problem&) = nullptr;
  // The kernels that such a plan launches, for whoever compiles them without a plan to run. Pure,
  // as supports() is; null: nothing is compiled at run time.
  Result<std::vector<KernelSource>> (*kernels)(const Problem&, const Config&) = nullptr;
  // Compiles and loads what run() needs; run() does the same where nobody asked. null: nothing.
  Status (*warm_up)(const Plan::State&) = nullptr;
  // Arguments have been checked (validate.h) and something is to be written. In a backward pass
  // that may be zeros alone: without query rows dk, dv, dbias and dsink are still defined.
  Status (*run)(const Plan::State&, const Args&, Stream);
};

// What a Plan owns; `config` is the implementation's.
struct Plan::State {
  Problem problem;
  Device device;  // as the options narrow it: isa and num_threads are the ones to use
  PlanOptions options;
  const Implementation* implementation = nullptr;
  std::string name;  // of the implementation
  Config config;
  std::shared_ptr<const void> prepared;
  size_t workspace_bytes = 0;
  std::vector<Refusal> refusals;
  // Arguments on a GPU that were found to be legal; what CPU memory holds is looked at every time.
  mutable LastArgs<bool> checked;
};

// Plan::create(), for whoever shows the decision: the refusals are told (appended to an empty list)
// also where there is no plan.
Result<Plan> create_plan(const Problem& problem, const PlanOptions& options, const Device& device,
                         std::vector<Refusal>& refusals);

// The kernels that the best implementation on `device` would launch for a problem, with its name;
// or why none that compiles at run time serves it. Needs no GPU.
struct KernelsOf {
  std::string implementation;
  std::vector<KernelSource> sources;
};
Result<KernelsOf> kernels_of(const Problem& problem, const Device& device);

// Best first; the reference last.
std::span<const Implementation* const> implementations();

}  // namespace sirdar
