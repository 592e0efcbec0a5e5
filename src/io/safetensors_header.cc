#include "io/safetensors_header.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

namespace sirdar::io {
namespace {

using Json = nlohmann::json;

// Returning false ends the parse; problem() then says why.
class Handler : public nlohmann::json_sax<Json> {
 public:
  explicit Handler(std::vector<SafetensorsEntry>& entries) : entries_(entries) {}

  const std::string& problem() const { return problem_; }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(int64_t) override { return unexpected("a negative number"); }
  bool number_float(double, const std::string& text) override {
    return unexpected("the number " + text.substr(0, 40));
  }
  bool binary(Json::binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(uint64_t number) override {
    SafetensorsEntry* entry = current();
    if (state_ == State::shape) {
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return fail(fmt::format("shape of {} has the size {}; no file can hold that many.",
                                in_quotes(entry->name), number));
      }
      entry->shape.push_back(static_cast<int64_t>(number));
      return true;
    }
    if (state_ == State::offsets && num_offsets_ < 2) {
      (num_offsets_++ == 0 ? entry->begin : entry->end) = number;
      return true;
    }
    return unexpected(fmt::format("the number {}", number));
  }

  bool string(std::string& text) override {
    if (state_ == State::metadata) return true;
    if (state_ == State::entry && field_ == "dtype") {
      current()->dtype = text;
      return true;
    }
    return unexpected("the text " + in_quotes(text));
  }

  bool start_object(size_t) override {
    if (state_ == State::before) {
      state_ = State::top;
      return true;
    }
    if (state_ != State::top) return unexpected("an object");
    fields_.clear();
    field_.clear();
    if (name_ == "__metadata__") {
      state_ = State::metadata;
    } else {
      state_ = State::entry;
      entries_.push_back({name_, {}, {}, 0, 0});
    }
    return true;
  }

  bool key(std::string& text) override {
    const bool is_top = state_ == State::top;
    if (!(is_top ? names_ : fields_).insert(text).second) {
      return fail(
          is_top ? fmt::format("the header names {} twice; names must differ.", in_quotes(text))
                 : fmt::format("the header gives {} of {} twice; once is allowed.", in_quotes(text),
                               in_quotes(name_)));
    }
    (is_top ? name_ : field_) = text;
    if (state_ == State::entry && text != "dtype" && text != "shape" && text != "data_offsets") {
      return fail(
          fmt::format("the header gives {} for {}; only dtype, shape and data_offsets are allowed.",
                      in_quotes(text), in_quotes(name_)));
    }
    return true;
  }

  bool end_object() override {
    if (state_ == State::entry) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(field)) {
          return fail(
              fmt::format("the header gives no {} for {}; it is needed.", field, in_quotes(name_)));
        }
      }
    }
    state_ = state_ == State::top ? State::after : State::top;
    return true;
  }

  bool start_array(size_t) override {
    if (state_ != State::entry || field_ == "dtype" || field_.empty()) return unexpected("a list");
    state_ = field_ == "shape" ? State::shape : State::offsets;
    num_offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (state_ == State::offsets && num_offsets_ != 2) {
      return fail(fmt::format("data_offsets of {} has {} numbers; it needs two.", in_quotes(name_),
                              num_offsets_));
    }
    state_ = State::entry;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    return fail(
        fmt::format("the header is not valid JSON (byte {}); write the file with the safetensors "
                    "package.",
                    position));
  }

 private:
  enum class State { before, top, metadata, entry, shape, offsets, after };

  SafetensorsEntry* current() { return entries_.empty() ? nullptr : &entries_.back(); }

  bool unexpected(const std::string& what) {
    switch (state_) {
      case State::before:
      case State::after:
        return fail(fmt::format("the header is {}; it must be an object of tensors.", what));
      case State::top:
        return fail(
            fmt::format("{} in the header is {}; it must be an object with dtype, shape and "
                        "data_offsets.",
                        in_quotes(name_), what));
      case State::metadata:
        return fail(fmt::format("'__metadata__' has {} for {}; only texts are allowed.", what,
                                in_quotes(field_)));
      default:
        return fail(fmt::format("{} of {} has {}; {}.", field_, in_quotes(name_), what,
                                field_ == "dtype"   ? "it must be a text"
                                : field_ == "shape" ? "it must be a list of sizes, 0 or more"
                                                    : "it must be a list of two offsets"));
    }
  }

  bool fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  std::vector<SafetensorsEntry>& entries_;
  State state_ = State::before;
  std::string name_, field_;
  std::unordered_set<std::string> names_, fields_;
  int num_offsets_ = 0;
  std::string problem_;
};

}  // namespace

std::string parse_safetensors_header(std::string_view text,
                                     std::vector<SafetensorsEntry>& entries) {
  if (text.empty() || text[0] != '{') {
    return "the header does not start with '{'; write the file with the safetensors package.";
  }
  Handler handler(entries);
  const bool is_read = Json::sax_parse(text.begin(), text.end(), &handler);
  if (!handler.problem().empty()) return handler.problem();
  return is_read ? ""
                 : "the header is not valid JSON; write the file with the safetensors package.";
}

}  // namespace sirdar::io
