// Gradients against central differences of the float64 forward pass, feature by feature.
#include <gtest/gtest.h>

#include <cmath>

#include "reference/attention.h"
#include "support/call.h"

namespace sirdar::test {
namespace {

// sum of dout * out and dlse * lse: the scalar whose gradient the backward pass gives.
double loss(const Call& call) {
  const reference::Forward forward = reference::forward(forward_of(call.problem), call.args());
  double sum = 0;
  for (int64_t n = 0; n < call.dout.size(); ++n) {
    const double dout = call.dout.flat(n);  // NaN beyond the rows in use
    if (!std::isnan(dout)) sum += dout * forward.out[static_cast<size_t>(n)];
  }
  for (int64_t n = 0; n < call.dlse.size(); ++n) {
    const double lse = forward.lse[static_cast<size_t>(n)];
    if (std::isfinite(lse)) sum += call.dlse.flat(n) * lse;
  }
  return sum;
}

// Compares some entries of one gradient with differences of the loss.
void expect_gradient(const Call& call, const char* name, Tensor input, const Tensor& gradient) {
  if (!gradient.present()) return;
  Random random(17);
  const int64_t tries = std::min<int64_t>(input.size(), 12);
  for (int64_t t = 0; t < tries; ++t) {
    const int64_t n = random.between(0, input.size() - 1);
    const double value = input.flat(n);
    if (std::isnan(value)) {  // beyond the rows in use
      EXPECT_EQ(gradient.flat(n), 0) << name << " " << n;
      continue;
    }
    const double step = 0x1p-10;
    input.set_flat(n, value + step);
    const double high = input.flat(n), loss_high = loss(call);
    input.set_flat(n, value - step);
    const double low = input.flat(n), loss_low = loss(call);
    input.set_flat(n, value);
    const double slope = (loss_high - loss_low) / (high - low);
    EXPECT_NEAR(gradient.flat(n), slope, 2e-4 * (1 + std::fabs(slope)))
        << name << " element " << n << " of " << call.problem.str();
  }
}

class GradientMatchesDifferences : public ::testing::TestWithParam<const char*> {};

TEST_P(GradientMatchesDifferences, ForEveryInputThatHasOne) {
  const std::string text = std::string("bwd b2 sq5 sk7 hq4 hkv2 d6 dv3 fp32 ") + GetParam();
  Call call(text);
  for (const Variant& variant : few_variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    call.run_forward_first();
    ASSERT_TRUE(call.run(variant).ok());
    expect_gradient(call, "dq", call.q, call.dq);
    expect_gradient(call, "dk", call.k, call.dk);
    expect_gradient(call, "dv", call.v, call.dv);
    expect_gradient(call, "dbias", call.bias, call.dbias);
    expect_gradient(call, "dsink", call.sink, call.dsink);
    for (size_t t = 0; t < call.dtensors.size(); ++t) {
      expect_gradient(call, "dtensor", call.tensors[t], call.dtensors[t]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Features, GradientMatchesDifferences,
    ::testing::Values(
        "", "causal", "causal top-left", "window:2,1", "chunk:3", "document", "mask", "scale:0",
        "scale:-0.5 causal", "softcap:2", "softcap:1 causal dlse", "bias dbias", "bias:h dbias",
        "bias:qk dbias softcap:3", "bias:bhk dbias causal", "bias:1 dbias", "alibi causal",
        "sink dsink", "sink dsink dlse causal", "sink dsink softcap:2 window:3,", "dropout:0.3",
        "dropout:0.3 sink dsink causal", "dropout:0.3 bias dbias dlse", "dlse", "seqused_q",
        "seqused_k", "seqused_q seqused_k causal dlse", "ragged_q:8 ragged_k:10 causal dlse",
        "ragged_q:8 ragged_k:10 sink dsink window:2,2",
        "score_mod:\"score + 0.25 * (k - q_pos)\" causal", "score_mod:\"2 * tanh(score / 2)\" dlse",
        "score_mod:\"score * sigmoid(score) + slope[h] * (k - q)\" tensor:slope:fp32:1:grad",
        "score_mod:\"score + table[q, k]\" tensor:table:fp32:2:grad causal dlse",
        "score_mod:\"score * gain\" scalar:gain softcap:4 bias dbias alibi",
        "mask_mod:\"(q + k) % 2 == 0\" sink dsink"),
    named_after_problem);

}  // namespace
}  // namespace sirdar::test
