// A plan as text: what was decided, what it costs, and why the others refused.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

#include "plan/cost.h"
#include "plan/implementation.h"
#include "plan/tiles.h"

namespace sirdar {
namespace {

class Sheet {
 public:
  template <class... T>
  void line(std::string_view label, fmt::format_string<T...> format, T&&... args) {
    fmt::format_to(std::back_inserter(text_), "{:<16}", label);
    fmt::format_to(std::back_inserter(text_), format, std::forward<T>(args)...);
    text_ += '\n';
  }
  std::string text() && { return std::move(text_); }

 private:
  std::string text_;
};

// 1536 -> "1.54 K"; units of 1000, as FLOP/s and GB/s are counted.
std::string scaled(double value) {
  constexpr std::string_view kUnits[] = {"", "K", "M", "G", "T", "P", "E"};
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < std::size(kUnits)) value /= 1000, ++unit;
  return unit == 0 ? fmt::format("{:.0f} ", value) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string device_text(const Device& device) {
  if (device.kind == DeviceKind::cuda)
    return fmt::format("{}, sm_{}, {} SMs", device.name, device.arch, device.num_sms);
  return fmt::format("{}, {}, {} thread{}", device.name, name_of(device.isa), device.num_threads,
                     device.num_threads == 1 ? "" : "s");
}

void add_tiles(const Problem& p, std::string_view config, Sheet& sheet) {
  const auto [block_m, block_n] = tile_size(config);
  const std::optional<TileCounts> tiles = count_tiles(p, block_m, block_n);
  if (!tiles) return;
  const std::string doubt =
      tiles->unknown.empty()
          ? ""
          : fmt::format("; part: perhaps, only the data tell {}", fmt::join(tiles->unknown, ", "));
  sheet.line("tiles",
             "{} all, {} part, {} none visible ({} x {}, one head of the longest sequence{})",
             tiles->all, tiles->part, tiles->none, block_m, block_n, doubt);
}

void add_roofline(const Plan::State& state, const Cost& cost, Sheet& sheet) {
  const std::optional<Peaks> peaks = recorded_peaks(state.device, state.problem.dtype_q);
  if (!peaks) {
    sheet.line("roofline", "peaks of this machine are not recorded; `sirdar bench` measures them");
    return;
  }
  // What hidden pairs would cost is no bound from below.
  if (!cost.is_exact) {
    sheet.line("roofline",
               "not known: what lengths, documents, masks and expressions hide is not counted "
               "here; `sirdar bench` counts it");
    return;
  }
  const bool by_flops = cost.flops / peaks->flops_per_s >= cost.bytes() / peaks->bytes_per_s;
  sheet.line("roofline", "{:.4g} ms at least, bound by {} ({}FLOP/s, {}B/s by the maker's figures)",
             roofline_seconds(cost, *peaks) * 1e3, by_flops ? "arithmetic" : "memory",
             scaled(peaks->flops_per_s), scaled(peaks->bytes_per_s));
}

}  // namespace

std::string Plan::explain() const {
  const Problem& p = state_->problem;
  const std::string settings = config();
  const Cost cost = cost_of(p);
  const std::string_view at_most = cost.is_exact ? "" : cost.is_upper_bound ? "at most " : "about ";
  Sheet sheet;
  sheet.line("problem", "{}", p.str());
  sheet.line("features", "{}", p.features().str());
  sheet.line("device", "{}", device_text(state_->device));
  sheet.line("implementation", "{}", name());
  const std::string_view note = state_->implementation->note;
  if (!note.empty()) sheet.line("note", "{}", note);
  if (!settings.empty()) sheet.line("config", "{}", settings);
  if (const auto packing = state_->implementation->packing; packing != nullptr) {
    if (const std::string text = packing(p, state_->config); !text.empty())
      sheet.line("packing", "{}", text);
  }
  if (const auto splitting = state_->implementation->splitting; splitting != nullptr)
    sheet.line("splitting", "{}", splitting(p, state_->config));
  sheet.line("workspace", "{} bytes", workspace_bytes());
  sheet.line("visible pairs", "{}{}", at_most, cost.visible_pairs);
  sheet.line("arithmetic", "{}{}FLOP", at_most, scaled(cost.flops));
  sheet.line("least traffic", "{}{}B read, {}B written", at_most, scaled(cost.bytes_read),
             scaled(cost.bytes_written));
  if (cost.is_exact && cost.bytes() > 0)
    sheet.line("intensity", "{:.4g} FLOP/B", cost.flops / cost.bytes());
  add_tiles(p, settings, sheet);
  add_roofline(*state_, cost, sheet);
  for (const Refusal& refusal : refusals())
    sheet.line("refused", "{}: {}", refusal.implementation, refusal.reason);
  return std::move(sheet).text();
}

}  // namespace sirdar
