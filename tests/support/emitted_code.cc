#include "support/emitted_code.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace sirdar::testing {
namespace {

constexpr std::string_view kHead = R"(#include "cuda/expression/modification.cuh"
#include <cstring>
struct Point {
  int b, h, q, k, q_pos;
  float score;
};
template <class M>
M read_from(const void* bytes) {
  M modification;
  std::memcpy(static_cast<void*>(&modification), bytes, sizeof modification);
  return modification;
}
template <class M>
auto row_of(const M& m, const Point& p) {
  return m.begin_row(p.b, p.h, p.q, p.q_pos);
}
template <class M>
auto key_of(const M& m, const Point& p) {
  return m.begin_key(p.b, p.h, p.k);
}
template <class M>
float score_of(const void* bytes, const Point& p) {
  const M m = read_from<M>(bytes);
  if constexpr (M::kScores) return m.score(row_of(m, p), key_of(m, p), p.score);
  return p.score;
}
template <class M>
float slope_of(const void* bytes, const Point& p) {
  const M m = read_from<M>(bytes);
  if constexpr (requires { &M::slope; }) return m.slope(row_of(m, p), key_of(m, p), p.score);
  return 1;
}
template <class M>
bool visible_of(const void* bytes, const Point& p) {
  const M m = read_from<M>(bytes);
  if constexpr (M::kMasks) return m.visible(row_of(m, p), key_of(m, p));
  return true;
}
struct Box {
  int b, h, q[2], q_pos[2], k[2];
};
// 1: some pair may be visible; 2: some may be hidden.
template <class M>
int cover_of(const void* bytes, const Box& of) {
  if constexpr (M::kMasks) {
    const M m = read_from<M>(bytes);
    const sirdar::language::Box box{of.b, of.h, {of.q[0], of.q[1]}, {of.q_pos[0], of.q_pos[1]},
                                    {of.k[0], of.k[1]}, 0, 1};
    const sirdar::language::Truth truth = m.visible_bounds(m.begin_row_bounds(box), box);
    return truth.may_be_true + 2 * truth.may_be_false;
  }
  return 3;
}
)";

struct EmittedBox {
  int b, h, q[2], q_pos[2], k[2];
};

// Structs that are all called Modification; the macro gives each a name of its own.
std::string unit(const std::vector<expression::DeviceModification>& modifications) {
  std::string text(kHead);
  for (size_t i = 0; i < modifications.size(); ++i) {
    text += fmt::format(R"(
#define Modification Modification{0}
namespace sirdar {{
{1}}}
#undef Modification
using M{0} = sirdar::Modification{0};
static_assert(sizeof(M{0}) == {2});
extern "C" float score_{0}(const void* m, const Point* p) {{ return score_of<M{0}>(m, *p); }}
extern "C" float slope_{0}(const void* m, const Point* p) {{ return slope_of<M{0}>(m, *p); }}
extern "C" bool visible_{0}(const void* m, const Point* p) {{ return visible_of<M{0}>(m, *p); }}
extern "C" int cover_{0}(const void* m, const Box* box) {{ return cover_of<M{0}>(m, *box); }}
)",
                        i, modifications[i].definition, modifications[i].num_bytes());
  }
  return text;
}

}  // namespace

EmittedCode::EmittedCode(const std::vector<expression::DeviceModification>& modifications) {
  const std::string stem =
      (std::filesystem::temp_directory_path() / fmt::format("sirdar_emitted_{}", getpid()))
          .string();
  const std::string source = stem + ".cc", object = stem + ".so", log = stem + ".log";
  std::ofstream(source) << unit(modifications);
  const std::string root = std::string(SIRDAR_TEST_DIR);
  const std::string command = fmt::format(
      "{} -std=c++20 -O0 -shared -fPIC -I{}/support/host_ptx -I{}/../src {} -o {} > {} 2>&1",
      SIRDAR_CXX_COMPILER, root, root, source, object, log);
  const int code = std::system(command.c_str());
  library_ = code == 0 ? dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  std::stringstream said;
  said << std::ifstream(log).rdbuf();
  for (const std::string& file : {source, object, log}) std::filesystem::remove(file);
  if (library_ == nullptr) throw std::runtime_error(command + "\n" + said.str());
}

EmittedCode::~EmittedCode() { dlclose(library_); }

template <class F>
F* EmittedCode::function(const char* name, size_t place) const {
  return reinterpret_cast<F*>(dlsym(library_, fmt::format("{}_{}", name, place).c_str()));
}

float EmittedCode::score(size_t place, const std::byte* bytes, const EmittedPoint& point) const {
  return function<float(const void*, const EmittedPoint*)>("score", place)(bytes, &point);
}
float EmittedCode::slope(size_t place, const std::byte* bytes, const EmittedPoint& point) const {
  return function<float(const void*, const EmittedPoint*)>("slope", place)(bytes, &point);
}
bool EmittedCode::visible(size_t place, const std::byte* bytes, const EmittedPoint& point) const {
  return function<bool(const void*, const EmittedPoint*)>("visible", place)(bytes, &point);
}
Cover EmittedCode::cover(size_t place, const std::byte* bytes, const expression::Box& box) const {
  const auto narrow = [](int64_t x) { return static_cast<int>(x); };
  const EmittedBox emitted{narrow(box.b),
                           narrow(box.h),
                           {narrow(box.q.begin), narrow(box.q.end - 1)},
                           {narrow(box.q.begin + box.shift), narrow(box.q.end - 1 + box.shift)},
                           {narrow(box.k.begin), narrow(box.k.end - 1)}};
  const int seen = function<int(const void*, const EmittedBox*)>("cover", place)(bytes, &emitted);
  return seen == 1 ? Cover::all : seen == 2 ? Cover::none : Cover::part;
}

}  // namespace sirdar::testing
