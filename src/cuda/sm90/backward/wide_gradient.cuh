// Gradients wider than 128 columns: one warpgroup has dV of 64 keys and makes P, the other has dK
// and makes dS of it.
#pragma once

#include "cuda/sm90/backward/key_rows.cuh"

namespace sirdar::sm90 {

// S^T = K Q^T, P^T = exp2, to the other warpgroup; dV += P^T dO.
template <BackwardConfig config, class Modification>
struct ValueGradient : KeyRows<config, Modification> {
  using Base = KeyRows<config, Modification>;
  using Base::params, Base::s, Base::score;
  static constexpr int kM = Base::kM, kWidth = Base::kWidth, kWidthV = Base::kWidthV;

  uint32_t weights[kM / 4];
  float dv[kWidthV / 2];
  RingPosition<config.num_stages_q> q_ring;        // of the next scores
  RingPosition<config.num_stages_dout> dout_ring;  // of the next dV
  RingPosition<config.num_ds> weights_ring;

  SIRDAR_DEVICE ValueGradient(const BackwardParams& p, const Modification& m,
                              BackwardShared<config> shared, int thread)
      : Base(p, m, shared, 0, thread) {}

  SIRDAR_DEVICE void issue_scores(KeyWalk<config>& tiles) {
    ptx::mbarrier_wait(s.q_full(q_ring.stage), q_ring.parity);
    if constexpr (config.has_mask_mod) tiles.hear(s.told(q_ring.stage), 0);
    this->multiply_scores(s.q(q_ring.stage), s.lse(q_ring.stage));
  }
  SIRDAR_DEVICE void issue_dv() {
    ptx::mbarrier_wait(s.dout_full(dout_ring.stage), dout_ring.parity);
    this->template multiply_tile<kWidthV>(dv, weights, s.dout(dout_ring.stage));
  }
  SIRDAR_DEVICE void finish_scores(const KeyBlock& block, const KeyWalk<config>& tiles,
                                   const AskedTile<config>& asked) {
    uint32_t sloped[kM / 4];              // the weights times the slopes of their logits
    if constexpr (is_modified(config)) {  // statistics are read once more
      this->take_modified(block, tiles, s.lse(q_ring.stage), asked, weights, sloped);
      if constexpr (has_slopes(config)) {
        this->give_back_read(s.q_empty(q_ring.stage));
      } else {
        this->arrive_each(s.q_empty(q_ring.stage));
      }
      q_ring.advance();
    } else {
      this->arrive_each(s.q_empty(q_ring.stage));
      q_ring.advance();
      this->take_weights(block, tile_of(tiles), weights, sloped);
    }
    const uint32_t(&given)[kM / 4] = has_slopes(config) ? sloped : weights;
    ptx::mbarrier_wait(s.weights_empty(weights_ring.stage), weights_ring.parity ^ 1);
    const uint32_t dst = s.weights(weights_ring.stage) + 16 * (32 * this->warp + this->lane);
    SIRDAR_UNROLL
    for (int i = 0; i < kM / 16; ++i) {
      const auto word = [&](int n) { return static_cast<int>(given[4 * i + n]); };
      ptx::store_shared(dst + i * 2048, ptx::Int4{word(0), word(1), word(2), word(3)});
    }
    this->arrive_each(s.weights_full(weights_ring.stage));
    weights_ring.advance();
  }
  SIRDAR_DEVICE void finish_dv() {
    ptx::registers_ready(dv);
    this->arrive_each(s.dout_empty(dout_ring.stage));
    dout_ring.advance();
  }

  // Scores of a tile are issued with dV of the one before.
  SIRDAR_DEVICE void walk(const KeyBlock& block) {
    KeyWalk<config> tiles = this->walk_of(block);
    if (tiles.is_done()) return;
    issue_scores(tiles);
    const AskedTile<config> first_asked = this->look(block, tiles);
    this->wait_products();
    finish_scores(block, tiles, first_asked);
    SIRDAR_NO_UNROLL
    for (tiles.advance(); !tiles.is_done(); tiles.advance()) {
      issue_scores(tiles);
      issue_dv();
      const AskedTile<config> asked = this->look(block, tiles);
      this->wait_products();
      finish_dv();
      finish_scores(block, tiles, asked);
    }
    issue_dv();
    ptx::wgmma_wait_group<0>();
    finish_dv();
  }

  SIRDAR_DEVICE void run() {
    int parity = 0;  // of K
    for (Items<config, true> items{params, s, this->lane}; !items.is_done(); items.advance()) {
      const KeyBlock block = block_of<config>(params, items.item);
      if (!has_keys<config>(params, block)) continue;
      SIRDAR_UNROLL
      for (float& value : dv) value = 0;
      ptx::mbarrier_wait(s.k_full(), parity);
      parity ^= 1;
      walk(block);
      if constexpr (restores(config)) this->write_lost(block, this->warp, find_lost(dv));
      ptx::barrier_arrive(4, 256);  // K is not read here any more
      ptx::barrier_sync(3, 256);    // nobody reads V any more
      this->template store<kWidthV>(dv, Base::kValueFactor, s.v(),
                                    {params.dv, params.dv_rows, config.head_dim_v, 1}, block);
      this->give_back_keys();
    }
  }
};

// dP^T = V dO^T, dS^T = P^T (dP^T - delta), to the warpgroup of dQ; dK += dS^T Q.
template <BackwardConfig config, class Modification>
struct WideKeyGradient : KeyRows<config, Modification> {
  using Base = KeyRows<config, Modification>;
  using Base::params, Base::s, Base::score;
  static constexpr int kM = Base::kM, kWidth = Base::kWidth, kWidthV = Base::kWidthV;

  uint32_t products[kM / 4];
  float dk[kWidth / 2];
  RingPosition<config.num_stages_q> q_ring;        // of the next dK
  RingPosition<config.num_stages_dout> dout_ring;  // of the next dP
  RingPosition<config.num_ds> ring;                // of P and dS

  SIRDAR_DEVICE WideKeyGradient(const BackwardParams& p, const Modification& m,
                                BackwardShared<config> shared, int thread)
      : Base(p, m, shared, 0, thread) {}

  SIRDAR_DEVICE void issue_dp() {
    ptx::mbarrier_wait(s.dout_full(dout_ring.stage), dout_ring.parity);
    this->start_columns(s.delta(dout_ring.stage));
    this->template multiply_rows<kWidthV>(s.v(), s.dout(dout_ring.stage));
  }
  SIRDAR_DEVICE void issue_dk() {
    ptx::mbarrier_wait(s.q_full(q_ring.stage), q_ring.parity);
    this->template multiply_tile<kWidth>(dk, products, s.q(q_ring.stage));
  }
  SIRDAR_DEVICE void finish_dp() {
    this->arrive_each(s.dout_empty(dout_ring.stage));
    dout_ring.advance();
    ptx::mbarrier_wait(s.weights_full(ring.stage), ring.parity);
    const uint32_t src = s.weights(ring.stage) + 16 * (32 * this->warp + this->lane);
    SIRDAR_UNROLL
    for (int i = 0; i < kM / 16; ++i) {
      const ptx::Int4 four = ptx::load_shared_int4(src + i * 2048);
      const int pairs[4] = {four.x, four.y, four.z, four.w};
      SIRDAR_UNROLL
      for (int n = 0; n < 4; ++n) {
        products[4 * i + n] = this->product(4 * i + n, static_cast<uint32_t>(pairs[n]));
      }
    }
    this->arrive_each(s.weights_empty(ring.stage));
    this->hand_over(products, ring);
    ring.advance();
  }
  SIRDAR_DEVICE void finish_dk() {
    ptx::registers_ready(dk);
    this->arrive_each(s.q_empty(q_ring.stage));
    q_ring.advance();
  }

  // dP of a tile is issued with dK of the one before.
  SIRDAR_DEVICE void walk(const KeyBlock& block) {
    KeyWalk<config> tiles = this->walk_of(block);
    if (tiles.is_done()) return;
    issue_dp();
    this->wait_products();
    finish_dp();
    SIRDAR_NO_UNROLL
    for (tiles.advance(); !tiles.is_done(); tiles.advance()) {
      issue_dp();
      issue_dk();
      this->wait_products();
      finish_dk();
      finish_dp();
    }
    issue_dk();
    ptx::wgmma_wait_group<0>();
    finish_dk();
    this->wait_for_dq(ring);
  }

  SIRDAR_DEVICE void run() {
    int parity = 0;  // of V
    for (Items<config, true> items{params, s, this->lane}; !items.is_done(); items.advance()) {
      const KeyBlock block = block_of<config>(params, items.item);
      if (!has_keys<config>(params, block)) continue;
      SIRDAR_UNROLL
      for (float& value : dk) value = 0;
      ptx::mbarrier_wait(s.v_full(), parity);
      this->wait_for_factor(parity);
      parity ^= 1;
      walk(block);
      if constexpr (restores(config)) this->write_lost(block, 4 + this->warp, find_lost(dk));
      ptx::barrier_arrive(3, 256);  // V is not read here any more
      ptx::barrier_sync(4, 256);    // nobody reads K any more
      this->template store<kWidth>(dk, this->key_factor(), s.k(),
                                   {params.dk, params.dk_rows, config.head_dim, 2}, block);
      this->give_back_keys();
    }
  }
};

}  // namespace sirdar::sm90
