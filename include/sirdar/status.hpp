// Status and Result<T>: how every function of Sirdar says what went wrong.
// One mechanism serves two tastes: ask ok()/status(), or call value() and let it throw
// sirdar::Error.
#pragma once

#include <sirdar/types.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#ifndef SIRDAR_API
#if defined(_WIN32)
#define SIRDAR_API
#else
#define SIRDAR_API __attribute__((visibility("default")))
#endif
#endif

namespace sirdar {

enum class StatusCode : uint8_t {
#define SIRDAR_ROW(name, value, meaning) name = value,
  SIRDAR_STATUS_CODES(SIRDAR_ROW)
#undef SIRDAR_ROW
};

// The code's name, e.g. "invalid_argument".
SIRDAR_API std::string_view name_of(StatusCode code);

// A message has one form: what was given, what is allowed, what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message, std::string argument = {}, std::string rule = {})
      : code_(code),
        message_(std::move(message)),
        argument_(std::move(argument)),
        rule_(std::move(rule)) {}

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  // One sentence for a person, starting with the argument's name; empty when ok.
  const std::string& message() const { return message_; }
  // The argument at fault, in the glossary's spelling; may be empty.
  const std::string& argument() const { return argument_; }
  // The id of the rule that was broken, e.g. "V017"; may be empty.
  const std::string& rule() const { return rule_; }

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_, argument_, rule_;
};

// What Result<T>::value() throws.
class Error : public std::runtime_error {
 public:
  explicit Error(Status status)
      : std::runtime_error(status.message()), status_(std::move(status)) {}
  const Status& status() const { return status_; }

 private:
  Status status_;
};

// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  // `status` is not ok; an ok one, which would promise a value, becomes an internal error.
  Result(Status status) : status_(std::move(status)) {
    if (status_.ok())
      status_ = Status(StatusCode::internal, "a result without a value or a reason.");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return check(), *value_; }
  const T& value() const& { return check(), *value_; }
  T&& value() && { return check(), std::move(*value_); }

 private:
  void check() const {
    if (!value_) throw Error(status_);
  }
  std::optional<T> value_;
  Status status_;
};

}  // namespace sirdar
