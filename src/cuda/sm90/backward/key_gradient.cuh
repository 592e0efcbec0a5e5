// A warpgroup of dK and dV: 64 keys, whose rows it keeps as accumulators while it walks the query
// tiles. Per tile S^T = K Q^T, P^T = exp2, dP^T = V dO^T in the registers of S^T, dV += P^T dO,
// dS^T = P^T (dP^T - delta) to the warpgroup of dQ and dK += dS^T Q.
#pragma once

#include "cuda/sm90/backward/key_rows.cuh"

namespace sirdar::sm90 {

template <BackwardConfig config, class Modification>
struct KeyGradient : KeyRows<config, Modification> {
  using Base = KeyRows<config, Modification>;
  using Base::half, Base::params, Base::s, Base::score;
  static constexpr int kM = Base::kM, kWidth = Base::kWidth, kWidthV = Base::kWidthV;

  // Where a tile is: its stages, and the slot of its dS.
  struct Place {
    RingPosition<config.num_stages_q> q;
    RingPosition<config.num_stages_dout> dout;
    RingPosition<config.num_ds> ds;

    SIRDAR_DEVICE void advance() {
      q.advance();
      dout.advance();
      ds.advance();
    }
  };

  uint32_t weights[kM / 4], products[kM / 4];  // P^T and dS^T in 16 bits
  float dk[kWidth / 2], dv[kWidthV / 2];
  Place next;      // of the tile that the walk stands at
  int parity = 0;  // of K and V

  using Base::Base;

  SIRDAR_DEVICE void issue_scores(const Place& place) {
    ptx::mbarrier_wait(s.q_full(place.q.stage), place.q.parity);
    this->multiply_scores(s.q(place.q.stage), s.lse(place.q.stage));
  }
  SIRDAR_DEVICE void issue_dp_and_dv(const Place& place) {
    ptx::mbarrier_wait(s.dout_full(place.dout.stage), place.dout.parity);
    this->start_columns(s.delta(place.dout.stage));
    this->template multiply_rows<kWidthV>(s.v(), s.dout(place.dout.stage));
    this->template multiply_tile<kWidthV>(dv, weights, s.dout(place.dout.stage));
  }
  SIRDAR_DEVICE void issue_dk(const Place& place) {
    this->template multiply_tile<kWidth>(dk, products, s.q(place.q.stage));
  }
  // dS^T is kept for dK.
  SIRDAR_DEVICE void hand_over_products(const Place& place) {
    SIRDAR_UNROLL
    for (int i = 0; i < kM / 4; ++i) {
      products[i] = this->product(i, has_slopes(config) ? products[i] : weights[i], products[i]);
    }
    this->hand_over(products, place.ds);
  }

  // Until dP^T is there products are what is kept of weights: those times slopes, or remainders.
  SIRDAR_DEVICE void take(const KeyBlock& block, const KeyWalk<config>& walk, const Place& place,
                          const AskedTile<config>& asked) {
    if constexpr (is_modified(config)) {
      this->take_modified(block, walk, s.lse(place.q.stage), asked, weights, products);
    } else {
      this->take_weights(block, tile_of(walk), weights, products);
    }
  }

  // ---- a key block

  // Tiles of which these keys see nothing are given back as they are.
  SIRDAR_DEVICE void skip_blind(const KeyBlock& block, KeyWalk<config>& walk) {
    while (!walk.is_done() && this->sees_nothing(block, walk, next.q)) {
      ptx::mbarrier_wait(s.q_full(next.q.stage), next.q.parity);
      this->arrive_each(s.q_empty(next.q.stage));
      ptx::mbarrier_wait(s.dout_full(next.dout.stage), next.dout.parity);
      this->arrive_each(s.dout_empty(next.dout.stage));
      ptx::mbarrier_wait(s.ds_empty(next.ds.stage), next.ds.parity ^ 1);
      this->arrive(s.ds_full(next.ds.stage));
      if constexpr (config.num_stages_bias > 0) {
        this->wait_for_bias();
        this->give_back_bias();
      }
      next.advance();
      walk.advance();
    }
  }

  // From the walk's tile to the next blind one or the end. Scores of a tile are issued with the dK
  // of the one before.
  SIRDAR_DEVICE void walk_seen(const KeyBlock& block, KeyWalk<config>& walk) {
    issue_scores(next);
    const AskedTile<config> first_asked = this->look(block, walk);
    this->wait_products();
    take(block, walk, next, first_asked);
    if constexpr (frees_keys_early(config)) ptx::mbarrier_wait(s.v_full(), parity);
    Place place = next;
    SIRDAR_NO_UNROLL
    while (true) {
      next.advance();
      walk.advance();
      issue_dp_and_dv(place);
      this->wait_products();
      ptx::registers_ready(dv);
      this->arrive_each(s.dout_empty(place.dout.stage));
      hand_over_products(place);
      if (walk.is_done() || this->sees_nothing(block, walk, next.q)) break;
      issue_scores(next);
      issue_dk(place);
      const AskedTile<config> asked = this->look(block, walk);
      this->wait_products();
      ptx::registers_ready(dk);
      this->arrive_each(s.q_empty(place.q.stage));
      take(block, walk, next, asked);
      place = next;
    }
    issue_dk(place);
    ptx::wgmma_wait_group<0>();
    ptx::registers_ready(dk);
    this->arrive_each(s.q_empty(place.q.stage));
  }

  SIRDAR_DEVICE void run() {
    for (Items<config, true> items{params, s, this->lane}; !items.is_done(); items.advance()) {
      const KeyBlock block = block_of<config>(params, items.item);
      if (!has_keys<config>(params, block)) continue;
      SIRDAR_UNROLL
      for (float& value : dk) value = 0;
      SIRDAR_UNROLL
      for (float& value : dv) value = 0;
      KeyWalk<config> walk = this->walk_of(block);
      ptx::mbarrier_wait(s.k_full(), parity);
      if constexpr (frees_keys_early(config)) {
        wait_for_staged();
      } else {
        ptx::mbarrier_wait(s.v_full(), parity);
      }
      this->wait_for_factor(parity);
      const bool has_tiles = !walk.is_done();
      while (true) {
        skip_blind(block, walk);
        if (walk.is_done()) break;
        walk_seen(block, walk);
      }
      if constexpr (restores(config)) {
        this->write_lost(block, 4 * half + this->warp, find_lost(dv) | find_lost(dk));
      }
      if constexpr (frees_keys_early(config)) ptx::mbarrier_wait(s.v_full(), parity);
      parity ^= 1;
      ptx::barrier_sync(1 + half, 128);  // every warp is done with K and V
      this->template store<kWidthV>(dv, Base::kValueFactor, s.v(),
                                    {params.dv, params.dv_rows, config.head_dim_v, 1 + half},
                                    block);
      if (has_tiles) this->wait_for_dq(next.ds);
      if constexpr (frees_keys_early(config)) this->give_back(s.kv_empty());
      const uint32_t room = frees_keys_early(config) ? s.ds(0) : s.k();
      this->template store<kWidth>(dk, this->key_factor(), room,
                                   {params.dk, params.dk_rows, config.head_dim, 1 + half}, block);
      if constexpr (frees_keys_early(config)) {
        this->template give_back_behind<1>(s.v_empty());
      } else {
        this->give_back_keys();
      }
    }
    if constexpr (frees_keys_early(config)) wait_for_staged();
  }

  // dK of the block before has left the room of dS.
  SIRDAR_DEVICE void wait_for_staged() {
    if (this->warp == 0 && this->lane == 0) ptx::cp_async_bulk_wait_group_read<0>();
    ptx::barrier_sync(1 + half, 128);
  }
};

}  // namespace sirdar::sm90
