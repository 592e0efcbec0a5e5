// Prints, as Markdown, the facts of the library that documents repeat, so they are never typed.
// usage: sirdar_describe support
#include "plan/implementation.h"

#include <fmt/core.h>

#include <string_view>

namespace {

struct Feature {
  std::string_view text;
  sirdar::FeatureSet bit;
};

constexpr Feature kFeatures[] = {
#define SIRDAR_ROW(name, bit, text) {text, sirdar::feature::name},
    SIRDAR_FEATURES(SIRDAR_ROW)
#undef SIRDAR_ROW
};

void print_support() {
  fmt::print("| a problem with |");
  for (const sirdar::Implementation* each : sirdar::implementations()) {
    fmt::print(" `{}` |", each->name);
  }
  fmt::print("\n|---|");
  for (size_t i = 0; i < sirdar::implementations().size(); ++i) fmt::print(":-:|");
  fmt::print("\n");
  for (const Feature& feature : kFeatures) {
    fmt::print("| {} |", feature.text);
    for (const sirdar::Implementation* each : sirdar::implementations()) {
      fmt::print(" {} |", each->understands.contains(feature.bit) ? "yes" : "-");
    }
    fmt::print("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc == 2 ? argv[1] : "";
  if (what == "support") return print_support(), 0;
  fmt::print(stderr, "sirdar_describe: '{}' is not a table; say support.\n", what);
  return 2;
}
