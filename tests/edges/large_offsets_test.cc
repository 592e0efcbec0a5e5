// Offsets beyond 2^31 elements and beyond 4 GiB: tensors whose rows are so far apart that 32-bit
// arithmetic would land elsewhere. The span is reserved address space; only the rows are touched.
#include <sys/mman.h>

#include <array>
#include <memory>

#include "edges/uniform.h"

namespace sirdar::test {
namespace {

// Address space for `count` fp32 elements; pages come into being when touched.
class Span {
 public:
  explicit Span(int64_t count) : bytes_(static_cast<size_t>(count) * 4) {
    void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at != MAP_FAILED) data_ = static_cast<float*>(at);
  }
  ~Span() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  float* data() const { return data_; }

 private:
  size_t bytes_;
  float* data_ = nullptr;
};

constexpr int64_t kBig = (int64_t{1} << 31) + 8;  // elements

int64_t reach(const TensorView& view) {
  int64_t last = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    const auto a = static_cast<size_t>(axis);
    last += (view.shape[a] - 1) * view.stride[a];
  }
  return last + 1;
}

// Visits every element of a view with its row-major number.
void for_each(const TensorView& view, const std::function<void(float*, int64_t)>& f) {
  int64_t count = 1;
  for (int axis = 0; axis < view.rank; ++axis) count *= view.shape[static_cast<size_t>(axis)];
  for (int64_t n = 0; n < count; ++n) {
    int64_t rest = n, offset = 0;
    for (int axis = view.rank; axis-- > 0;) {
      const auto a = static_cast<size_t>(axis);
      offset += rest % view.shape[a] * view.stride[a];
      rest /= view.shape[a];
    }
    f(static_cast<float*>(view.data) + offset, n);
  }
}

// The same view of far memory, its elements copied from `near`.
TensorView spread(const Tensor& near_tensor, const Span& span,
                  std::array<int64_t, kMaxRank> stride) {
  TensorView view = near_tensor.view();
  view.stride = stride;
  view.data = span.data();
  for_each(view,
           [&](float* element, int64_t n) { *element = static_cast<float>(near_tensor.flat(n)); });
  return view;
}

std::vector<double> gather(const TensorView& view) {
  std::vector<double> values;
  for_each(view, [&](float* element, int64_t) { values.push_back(*element); });
  return values;
}

Status run_with(const Call& call, const Variant& variant, const std::function<void(Args&)>& edit) {
  const Plan plan = Plan::create(call.problem, variant.options()).value();
  Args args = call.args();
  edit(args);
  std::vector<std::byte> space(plan.workspace_bytes() + 64);
  void* start = space.data();
  size_t room = space.size();
  args.workspace = std::align(64, plan.workspace_bytes(), start, room);
  args.workspace_bytes = plan.workspace_bytes();
  return plan.run(args);
}

struct Stretch {
  const char* name;
  std::array<int64_t, kMaxRank> stride;
};

// B062, B075: rows, heads or batches of q, k, v and out far apart, as in views of fused tensors.
TEST(LargeOffsets, EveryAxisOfEveryTensor) {
  const Stretch stretches[] = {{"rows", {24, kBig, 8, 1}},
                               {"heads", {24, 8, kBig, 1}},
                               {"batches", {kBig, 16, 8, 1}},
                               {"rows of a fused tensor", {2 * kBig, kBig / 2, 8, 1}}};
  Call call("fwd b2 sq3 sk3 hq2 hkv2 d8 fp32 causal lse");
  for (const Variant& variant : few_variants(call.problem)) {
    ASSERT_TRUE(call.run(variant).ok());
    const std::vector<double> expected = call.out.values();
    for (const Stretch& stretch : stretches) {
      SCOPED_TRACE(variant.str() + " " + stretch.name);
      TensorView shape = call.q.view();
      shape.stride = stretch.stride;
      const Span q(reach(shape)), k(reach(shape)), v(reach(shape)), out(reach(shape));
      ASSERT_NE(q.data(), nullptr);
      ASSERT_NE(k.data(), nullptr);
      ASSERT_NE(v.data(), nullptr);
      ASSERT_NE(out.data(), nullptr);
      TensorView far_out = call.out.view();
      far_out.stride = stretch.stride;
      far_out.data = out.data();
      const Status status = run_with(call, variant, [&](Args& args) {
        args.q = spread(call.q, q, stretch.stride);
        args.k = spread(call.k, k, stretch.stride);
        args.v = spread(call.v, v, stretch.stride);
        args.out = far_out;
      });
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(gather(far_out), expected);
    }
  }
}

// B075: the backward pass too, gradients far apart.
TEST(LargeOffsets, GradientsFarApart) {
  Call call("bwd b2 sq3 sk3 hq2 hkv2 d8 fp32 causal");
  call.run_forward_first();
  const std::array<int64_t, kMaxRank> stride{2 * kBig, kBig / 2, 8, 1};
  for (const Variant& variant : few_variants(call.problem)) {
    SCOPED_TRACE(variant.str());
    ASSERT_TRUE(call.run(variant).ok());
    TensorView far_dk = call.dk.view(), far_dq = call.dq.view();
    far_dk.stride = far_dq.stride = stride;
    const Span dq(reach(far_dq)), dk(reach(far_dk));
    ASSERT_NE(dq.data(), nullptr);
    ASSERT_NE(dk.data(), nullptr);
    far_dq.data = dq.data(), far_dk.data = dk.data();
    const Status status =
        run_with(call, variant, [&](Args& args) { args.dq = far_dq, args.dk = far_dk; });
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(gather(far_dq), call.dq.values());
    EXPECT_EQ(gather(far_dk), call.dk.values());
  }
}

// B076, B077: page numbers whose product with the page stride passes 2^31 and 2^32.
TEST(LargeOffsets, HighPageNumbers) {
  Call low("fwd b1 sq2 sk40 hq2 hkv2 d8 fp32 paged16 causal lse", {{}, {}, {}, {40}});
  const int64_t page_elements = 16 * 2 * 8;
  for (const int64_t first :
       {(int64_t{1} << 31) / page_elements - 1, (int64_t{1} << 31) / page_elements,
        (int64_t{1} << 32) / page_elements + 70000}) {
    Call high = low;
    high.page_table = Tensor(DType::int32, {1, 3});
    for (int64_t i = 0; i < 3; ++i) high.page_table.set({0, i}, static_cast<double>(first + i));
    const int64_t pages = first + 3;
    const Span k(pages * page_elements), v(pages * page_elements);
    ASSERT_NE(k.data(), nullptr);
    ASSERT_NE(v.data(), nullptr);
    for (int64_t j = 0; j < 40; ++j) {
      const int64_t row = (first + j / 16) * 16 + j % 16;
      for (int64_t c = 0; c < 16; ++c) {
        k.data()[row * 16 + c] = static_cast<float>(low.k.flat(low.key_row(0, j) * 16 + c));
        v.data()[row * 16 + c] = static_cast<float>(low.v.flat(low.key_row(0, j) * 16 + c));
      }
    }
    for (const Variant& variant : few_variants(low.problem)) {
      SCOPED_TRACE(variant.str() + " from page " + std::to_string(first));
      ASSERT_TRUE(low.run(variant).ok());
      const std::vector<uint8_t> expected = low.output_bits();
      const Status status = run_with(high, variant, [&](Args& args) {
        args.k = TensorView::contiguous(k.data(), DType::fp32, {pages, 16, 2, 8});
        args.v = TensorView::contiguous(v.data(), DType::fp32, {pages, 16, 2, 8});
      });
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(high.output_bits(), expected);
    }
  }
}

// B083: a bias whose batches and heads lie beyond 2^31 elements.
TEST(LargeOffsets, BiasesFarApart) {
  Call call("fwd b2 sq3 sk5 hq2 hkv2 d8 fp32 bias lse");
  for (const Variant& variant : few_variants(call.problem)) {
    for (const Stretch& stretch :
         {Stretch{"batches", {kBig, 15, 5, 1}}, Stretch{"heads", {15, kBig, 5, 1}},
          Stretch{"rows", {15, 30, kBig, 1}}, Stretch{"keys", {16, 8, 2, kBig}}}) {
      SCOPED_TRACE(variant.str() + " " + stretch.name);
      ASSERT_TRUE(call.run(variant).ok());
      const std::vector<uint8_t> expected = call.output_bits();
      TensorView shape = call.bias.view();
      shape.stride = stretch.stride;
      const Span bias(reach(shape));
      ASSERT_NE(bias.data(), nullptr);
      const Status status = run_with(
          call, variant, [&](Args& args) { args.bias = spread(call.bias, bias, stretch.stride); });
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(call.output_bits(), expected);
    }
  }
}

// B080: more than 65535 sequences or heads; the last one is right.
TEST(LargeOffsets, CountsBeyondSixteenBits) {
  for (const char* text :
       {"fwd b65537 sq2 sk3 hq1 hkv1 d2 fp32 lse", "fwd b1 sq2 sk3 hq65537 hkv65537 d2 fp32 lse",
        "fwd b1 sq2 sk3 hq65537 hkv1 d2 fp32 lse"}) {
    Call call(text);
    make_uniform(call);
    for (const Variant& variant : few_variants(call.problem)) {
      SCOPED_TRACE(std::string(text) + " " + variant.str());
      ASSERT_TRUE(call.run(variant).ok());
      EXPECT_FLOAT_EQ(static_cast<float>(call.out.flat(call.out.size() - 1)), 2.0f);
      EXPECT_NEAR(call.lse.flat(call.lse.size() - 1), std::log(3.0), 1e-5);
      EXPECT_FLOAT_EQ(static_cast<float>(call.out.flat(0)), 2.0f);
    }
  }
}

}  // namespace
}  // namespace sirdar::test
