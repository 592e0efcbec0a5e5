// An argument takes effect or is refused; none is ignored (B036, B129).
#include "edges/uniform.h"

namespace sirdar::test {
namespace {

struct Change {
  const char* name;
  std::function<void(Call&)> edit;  // of problem, tensors or scalars
};

// Runs the call made from `text`, and again after each change: the outputs must differ.
void expect_each_matters(const std::string& text, const std::vector<Change>& changes) {
  const Problem problem = Problem::parse(text).value();
  for (const Variant& variant : few_variants(problem)) {
    Call base(problem);
    if (problem.op == Op::backward) base.run_forward_first();
    ASSERT_TRUE(base.run(variant).ok()) << text;
    const std::vector<uint8_t> expected = base.output_bits();
    for (const Change& change : changes) {
      SCOPED_TRACE(text + " " + variant.str() + " " + change.name);
      Call changed(problem);
      if (problem.op == Op::backward) changed.run_forward_first();
      change.edit(changed);
      const Status status = changed.run(variant);
      if (!status.ok()) {
        EXPECT_FALSE(status.message().empty());
        continue;  // refused: not ignored
      }
      EXPECT_NE(changed.output_bits(), expected) << "had no effect";
    }
  }
}

Change nudge(const char* name, Tensor Call::*member) {
  return {name, [member](Call& call) {
            Tensor& tensor = call.*member;
            for (int64_t n = 0; n < tensor.size(); ++n)
              tensor.set_flat(n, tensor.flat(n) * 0.5 + 0.25);
          }};
}

TEST(EveryArgumentMatters, FieldsOfAForwardProblem) {
  expect_each_matters("fwd b2 sq9 sk17 hq4 hkv2 d16 fp32 lse max_logit",
                      {{"softcap", [](Call& c) { c.problem.softcap = 5; }},
                       {"softcap 50", [](Call& c) { c.problem.softcap = 50; }},
                       {"scale", [](Call& c) { c.problem.softmax_scale = 0.3f; }},
                       {"scale 0", [](Call& c) { c.problem.softmax_scale = 0.0f; }},
                       {"causal", [](Call& c) { c.problem.mask.is_causal = true; }},
                       {"window_left", [](Call& c) { c.problem.mask.window_left = 3; }},
                       {"window_right", [](Call& c) { c.problem.mask.window_right = 3; }},
                       {"chunk", [](Call& c) { c.problem.mask.chunk_size = 4; }},
                       {"mask_mod", [](Call& c) { c.problem.mask_mod = "k != 3"; }},
                       {"score_mod", [](Call& c) { c.problem.score_mod = "score * 0.5"; }},
                       {"dropout", [](Call& c) { c.problem.dropout_p = 0.5f; }}});
}

TEST(EveryArgumentMatters, AlignmentMattersWhereLengthsDiffer) {
  for (const char* mask : {"causal", "window:3,3", "chunk:4"}) {
    expect_each_matters(
        std::string("fwd b2 sq9 sk17 hq2 hkv2 d16 fp32 ") + mask,
        {{"alignment", [](Call& c) { c.problem.mask.alignment = Alignment::top_left; }}});
  }
}

TEST(EveryArgumentMatters, TensorsOfAForwardCall) {
  expect_each_matters(
      "fwd b2 sq9 sk17 hq4 hkv2 d16 fp32 bias alibi sink lse",
      {nudge("q", &Call::q), nudge("k", &Call::k), nudge("v", &Call::v), nudge("bias", &Call::bias),
       nudge("alibi", &Call::alibi), nudge("sink", &Call::sink)});
  expect_each_matters("fwd b2 sq9 sk17 hq4 hkv2 d16 fp32 sink lse", {nudge("sink", &Call::sink)});
  expect_each_matters(
      "fwd b2 sq9 sk17 hq4 hkv2 d16 fp32 mask",
      {{"mask", [](Call& c) { c.mask.fill_by([](const int64_t* x) { return x[3] % 2; }); }}});
  expect_each_matters("fwd b2 sq9 sk17 hq4 hkv2 d16 fp32 document",
                      {{"document_q", [](Call& c) { c.document_q.fill(1); }},
                       {"document_k", [](Call& c) { c.document_k.fill(1); }}});
  expect_each_matters("fwd b2 sq9 sk17 hq4 hkv2 d16 fp32 seqused_q seqused_k lse",
                      {{"seqused_q", [](Call& c) { c.seqused_q.fill(2); }},
                       {"seqused_k", [](Call& c) { c.seqused_k.fill(2); }}});
  expect_each_matters("fwd b2 sq9 sk17 hq4 hkv2 d16 fp32 ragged_q:12 ragged_k:20",
                      {{"cu_seqlens_q", [](Call& c) { c.cu_seqlens_q.set({1}, 5); }},
                       {"cu_seqlens_k", [](Call& c) { c.cu_seqlens_k.set({1}, 5); }}});
  expect_each_matters("fwd b2 sq9 sk17 hq4 hkv2 d16 fp32 paged4",
                      {{"page_table", [](Call& c) {
                          const double first = c.page_table.at({0, 0});
                          c.page_table.set({0, 0}, c.page_table.at({1, 0})).set({1, 0}, first);
                        }}});
}

TEST(EveryArgumentMatters, NumbersThatTravelWithACall) {
  expect_each_matters(
      "fwd b2 sq9 sk17 hq4 hkv2 d16 fp32 dropout:0.5",
      {{"dropout_seed", [](Call& c) { c.dropout_seed += 1; }},
       {"dropout_offset", [](Call& c) { c.dropout_offset += 1; }},
       {"high bits of the seed", [](Call& c) { c.dropout_seed += uint64_t{1} << 32; }},
       {"high bits of the offset", [](Call& c) { c.dropout_offset += uint64_t{1} << 32; }},
       {"dropout_p", [](Call& c) { c.problem.dropout_p = 0.25f; }}});
  expect_each_matters(
      "fwd b2 sq9 sk17 hq4 hkv2 d16 fp32 score_mod:\"score + gain * k\" scalar:gain",
      {{"scalar", [](Call& c) { c.scalars[0] = 0.125; }}});
  expect_each_matters(
      "fwd b2 sq9 sk17 hq4 hkv2 d16 fp32 score_mod:\"score + t[h]\" tensor:t:fp32:1 lse",
      {{"tensor", [](Call& c) { c.tensors[0].fill(0.75); }}});
}

TEST(EveryArgumentMatters, TensorsOfABackwardCall) {
  expect_each_matters(
      "bwd b2 sq9 sk17 hq4 hkv2 d16 fp32 bias dbias sink dsink alibi dlse softcap:9",
      {nudge("q", &Call::q),
       nudge("k", &Call::k),
       nudge("v", &Call::v),
       nudge("out", &Call::out),
       nudge("lse", &Call::lse),
       nudge("dout", &Call::dout),
       nudge("dlse", &Call::dlse),
       nudge("bias", &Call::bias),
       nudge("sink", &Call::sink),
       nudge("alibi", &Call::alibi),
       {"softcap", [](Call& c) { c.problem.softcap = 3; }},
       {"scale", [](Call& c) { c.problem.softmax_scale = 0.3f; }}});
}

// What a problem does not ask for may not be given: B036's window at run time has no place to hide.
TEST(EveryArgumentMatters, TensorsTheProblemDoesNotAskForAreRefused) {
  Call all(
      "fwd b2 sq5 sk6 hq2 hkv2 d4 fp32 bias mask alibi sink document seqused_q seqused_k lse "
      "max_logit");
  using Member = TensorView Args::*;
  const std::pair<const char*, Member> members[] = {{"bias", &Args::bias},
                                                    {"mask", &Args::mask},
                                                    {"alibi", &Args::alibi},
                                                    {"sink", &Args::sink},
                                                    {"document_q", &Args::document_q},
                                                    {"document_k", &Args::document_k},
                                                    {"seqused_q", &Args::seqused_q},
                                                    {"seqused_k", &Args::seqused_k},
                                                    {"lse", &Args::lse},
                                                    {"max_logit", &Args::max_logit},
                                                    {"page_table", &Args::page_table},
                                                    {"cu_seqlens_q", &Args::cu_seqlens_q},
                                                    {"cu_seqlens_k", &Args::cu_seqlens_k},
                                                    {"dout", &Args::dout},
                                                    {"dlse", &Args::dlse},
                                                    {"dq", &Args::dq},
                                                    {"dk", &Args::dk},
                                                    {"dv", &Args::dv},
                                                    {"dbias", &Args::dbias},
                                                    {"dsink", &Args::dsink}};
  Call plain("fwd b2 sq5 sk6 hq2 hkv2 d4 fp32");
  const Plan plan = Plan::create(plain.problem, Variant{"reference", "", 1}.options()).value();
  std::vector<std::byte> space(plan.workspace_bytes() + 64);
  for (const auto& [name, member] : members) {
    Args args = plain.args();
    void* start = space.data();
    size_t room = space.size();
    args.workspace = std::align(64, plan.workspace_bytes(), start, room);
    args.workspace_bytes = plan.workspace_bytes();
    const Args full = all.args();
    args.*member = (full.*member).present() ? full.*member : all.q.view();
    const Status status = plan.run(args);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << name;
    EXPECT_EQ(status.argument(), name) << status.message();
  }
  Args seeded = plain.args();
  seeded.dropout_seed = 3;
  EXPECT_EQ(plan.run(seeded).argument(), "dropout_seed");
  Args named = plain.args();
  named.scalars.emplace_back("gain", 1.0);
  EXPECT_EQ(plan.run(named).argument(), "scalars");
}

// B129: soft-caps of 0, 5 and 50 are three different results.
TEST(EveryArgumentMatters, EverySoftcapDiffers) {
  for (const Variant& variant :
       few_variants(Problem::parse("fwd sq9 sk17 d16 fp32 softcap:5").value())) {
    Call none("fwd b1 sq9 sk17 hq1 hkv1 d16 fp32"),
        five("fwd b1 sq9 sk17 hq1 hkv1 d16 fp32 softcap:5");
    Call fifty("fwd b1 sq9 sk17 hq1 hkv1 d16 fp32 softcap:50");
    ASSERT_TRUE(none.run(variant).ok());
    ASSERT_TRUE(five.run(variant).ok());
    ASSERT_TRUE(fifty.run(variant).ok());
    EXPECT_NE(none.output_bits(), five.output_bits());
    EXPECT_NE(none.output_bits(), fifty.output_bits());
    EXPECT_NE(five.output_bits(), fifty.output_bits());
  }
}

// B085: heads that do not divide, or tensors whose heads are not the problem's, are errors
// everywhere.
TEST(EveryArgumentMatters, HeadCountsMustFit) {
  const Result<Problem> odd = Problem::parse("fwd b1 sq4 sk4 hq32 hkv5 d8 fp32");
  EXPECT_FALSE(odd.ok() && odd.value().validate().ok());
  Call call("fwd b1 sq4 sk4 hq32 hkv32 d8 fp32");
  call.k = Tensor(DType::fp32, {1, 4, 8, 8}).fill(0);
  const Status status = call.run_reference();
  EXPECT_EQ(status.argument(), "k");
  EXPECT_NE(status.message().find("32"), std::string::npos) << status.message();
}

// B162: mixed dtypes name the tensor, what it is, and what it must be.
TEST(EveryArgumentMatters, DtypesMustFit) {
  Call call("fwd b1 sq4 sk4 hq1 hkv1 d8 fp32");
  call.v = Tensor(DType::bf16, {1, 4, 1, 8}).fill(0);
  const Status status = call.run_reference();
  EXPECT_EQ(status.argument(), "v");
  EXPECT_NE(status.message().find("bf16"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("fp32"), std::string::npos) << status.message();
  const Result<Problem> mixed = Problem::parse("fwd b1 sq4 sk4 hq1 hkv1 d8 fp32 kv:bf16");
  EXPECT_FALSE(mixed.ok() && mixed.value().validate().ok());
}

// B149: what nothing fast understands is refused with every reason, never served silently by
// another.
TEST(EveryArgumentMatters, FallingBackIsTheCallersChoice) {
  const Problem p =
      Problem::parse("bwd b1 sq4 sk4 hq1 hkv1 d8 fp32 dropout:0.5 bias dbias").value();
  const Result<Plan> strict = Plan::create(p);
  if (!strict.ok()) {
    EXPECT_EQ(strict.status().code(), StatusCode::unsupported);
    EXPECT_NE(strict.status().message().find("reference"), std::string::npos);
  } else {
    EXPECT_NE(strict.value().name(), "reference");
  }
  PlanOptions lenient;
  lenient.allow_reference = true;
  EXPECT_TRUE(Plan::create(p, lenient).ok());
}

}  // namespace
}  // namespace sirdar::test
