// The kernel's stages one after the other: what `sirdar ladder --device cuda` climbs.
#pragma once

#include "cuda/sm90/forward/config.h"

#include <array>

namespace sirdar::sm90 {

struct Rung {
  const char* system;  // of the articles; "" where it is ours
  const char* name;    // what it adds
  // Takes the stage out of the product's config, or adds one that the product does without.
  void (*change)(ForwardConfig&);
  bool is_extra;  // the latter: measured beside the product, not on top of each other
};

// The first rung is what is left when all others that are not extra are taken out.
inline constexpr std::array kRungs = {
    Rung{"S12", "one tile of K and one of V at a time, by a producer warp", [](ForwardConfig&) {},
         false},
    Rung{"S12", "loads run ahead: rings of tiles",
         [](ForwardConfig& c) { c.num_stages_k = c.num_stages_v = 1; }, false},
    Rung{"S12", "registers move to the consumers",
         [](ForwardConfig& c) { c.moves_registers = false; }, false},
    Rung{"S13", "turns between warpgroups (ping-pong)",
         [](ForwardConfig& c) { c.takes_turns = false; }, false},
    Rung{"S14", "overlap within a warpgroup", [](ForwardConfig& c) { c.overlaps = false; }, false},
    Rung{"S15", "persistent blocks, Q ahead, O stored behind",
         [](ForwardConfig& c) {
           c.is_persistent = false;
           c.num_q_buffers = 1;
         },
         false},
    Rung{"S16", "longest items first, drawn by whoever is free",
         [](ForwardConfig& c) {
           if (c.mask == MaskForm::full) return;
           c.order = Order::by_head;
           c.draws_items = false;
         },
         false},
    Rung{"S16", "sections of heads that fit L2",
         [](ForwardConfig& c) {
           if (c.mask != MaskForm::full && c.order == Order::in_sections)
             c.order = Order::longest_first;
         },
         false},
    Rung{"", "items of the last round shared out evenly",
         [](ForwardConfig& c) { c.shares_last_round = false; }, false},
    Rung{"S24", "keys of few query blocks split among thread blocks",
         [](ForwardConfig& c) { c.num_splits = 1; }, false},
    Rung{"", "warpgroups skip what none of their own rows sees",
         [](ForwardConfig& c) { c.trim = 0; }, false},
    Rung{"S21", "conditional rescaling", [](ForwardConfig& c) { c.softmax = Softmax::classic; },
         false},
    Rung{"", "guarded reference: no maximum in whole blocks",
         [](ForwardConfig& c) {
           if (c.softmax == Softmax::guarded) c.softmax = Softmax::conditional;
         },
         false},
    Rung{"S20", "1 of 16 exponentials by polynomial",
         [](ForwardConfig& c) { c.num_polynomial = 1; }, true},
    Rung{"S20", "4 of 16 exponentials by polynomial",
         [](ForwardConfig& c) { c.num_polynomial = 4; }, true},
    Rung{"S22", "clusters of 2 that load K and V for each other",
         [](ForwardConfig& c) {
           c.cluster_size = 2;
           c.trim = 0;
           c.num_splits = 1;
           c.shares_last_round = false;
         },
         true},
};

// The kernel of rung `index`, made from the product's: the stages above it are taken out, from the
// top down; an extra one is added to the product as it is.
constexpr ForwardConfig config_of_rung(ForwardConfig product, size_t index) {
  if (kRungs[index].is_extra) {
    kRungs[index].change(product);
    return product;
  }
  for (size_t i = kRungs.size() - 1; i > index; --i) {
    if (!kRungs[i].is_extra) kRungs[i].change(product);
  }
  return product;
}

// Whether the rung changes anything about this kernel.
constexpr bool has_rung(const ForwardConfig& product, size_t index) {
  if (index == 0) return true;
  if (kRungs[index].is_extra) return config_of_rung(product, index) != product;
  return config_of_rung(product, index) != config_of_rung(product, index - 1);
}

}  // namespace sirdar::sm90
