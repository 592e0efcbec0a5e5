// Text -> Problem. A problem string is words between blanks; docs/problem_strings.md lists them.
#include "core/problem_string.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "core/suggest.h"

namespace sirdar {
namespace {

struct Token {
  std::string_view text;
  size_t column;  // from 1
};

Status word_error(const Token& token, std::string_view what) {
  return Status(StatusCode::invalid_argument,
                fmt::format("problem: '{}' at column {} {}{}", shortened(token.text), token.column,
                            what, what.ends_with('?') ? "" : "."),
                "problem");
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Blanks inside double quotes belong to the word.
Result<std::vector<Token>> tokenize(std::string_view text) {
  std::vector<Token> tokens;
  for (size_t at = 0; at < text.size();) {
    if (is_blank(text[at])) {
      ++at;
      continue;
    }
    const size_t begin = at;
    bool in_quotes = false;
    for (; at < text.size() && (in_quotes || !is_blank(text[at])); ++at) {
      if (text[at] == '"') in_quotes = !in_quotes;
      if (in_quotes && text[at] == '\\' && at + 1 < text.size()) ++at;
    }
    tokens.push_back({text.substr(begin, at - begin), begin + 1});
    if (in_quotes) return word_error(tokens.back(), "opens a quote and does not close it");
  }
  return tokens;
}

const Word* find(std::string_view name, Form form) {
  for (const Word& word : problem_words())
    if (word.form == form && word.name == name) return &word;
  return nullptr;
}

struct Match {
  const Word* word = nullptr;
  std::string_view value;
};

// The part of a word that is its name: up to the colon, or up to the first digit or minus.
std::string_view name_part(std::string_view text) {
  return text.substr(0, text.find_first_of(":-0123456789"));
}

Match match(std::string_view text) {
  if (const Word* word = find(text, Form::plain)) return {word, {}};
  const size_t colon = text.find(':');
  if (colon != std::string_view::npos)
    return {find(text.substr(0, colon), Form::colon), text.substr(colon + 1)};
  const std::string_view name = name_part(text);
  if (name.size() == text.size()) return {};
  return {find(name, Form::glued), text.substr(name.size())};
}

std::string unknown_word(std::string_view text) {
  std::string usages;
  for (const Word& word : problem_words())
    if (word.name == name_part(text))
      usages += (usages.empty() ? "" : " or ") + std::string(word.usage);
  if (!usages.empty()) return "is not how this word is written; write " + usages;
  std::vector<std::string_view> names;
  for (const Word& word : problem_words()) {
    names.push_back(word.name);
    usages += (usages.empty() ? "" : ", ") + std::string(word.usage);
  }
  std::string hint = suggestion(text.substr(0, text.find(':')), names);
  if (hint.empty()) hint = suggestion(name_part(text), names);
  if (!hint.empty()) return "is not a word of a problem string" + hint;
  return "is not a word of a problem string; the words are " + usages;
}

// Remembers which word set a field, so that a second one is an error and not a surprise.
class FieldsSet {
 public:
  Status add(const Token& token, std::string_view fields) {
    for (const std::string_view field : split(fields, ',')) {
      if (field.empty()) continue;
      for (const auto& [other_field, other] : set_) {
        if (other_field != field) continue;
        return word_error(token, fmt::format("sets again what '{}' at column {} does; keep one of "
                                             "the two",
                                             shortened(other.text), other.column));
      }
      set_.emplace_back(field, token);
    }
    return {};
  }
  bool contains(std::string_view field) const {
    for (const auto& [other, token] : set_)
      if (other == field) return true;
    return false;
  }

 private:
  std::vector<std::pair<std::string_view, Token>> set_;
};

Status fill_total(std::string_view name, int64_t batch, int64_t seqlen, int64_t& total) {
  if (!__builtin_mul_overflow(batch, seqlen, &total)) return {};
  return Status(
      StatusCode::invalid_argument,
      fmt::format("problem: {} of {} sequences of {} rows does not fit 64 bits; use smaller "
                  "sizes.",
                  name, batch, seqlen),
      "problem");
}

Result<Problem> settle(Draft draft, const FieldsSet& fields) {
  Problem& p = draft.problem;
  for (const auto& [field, word] : {std::pair{"seqlen_q", "sqN"}, std::pair{"seqlen_k", "skN"}}) {
    if (fields.contains(field)) continue;
    return Status(StatusCode::invalid_argument,
                  fmt::format("problem: {} is not given; add {}, or sN for queries and keys alike.",
                              field, word),
                  "problem");
  }
  if (!fields.contains("num_heads_kv")) p.num_heads_kv = p.num_heads_q;
  p.dtype_kv = draft.dtype_kv.value_or(p.dtype_q);
  if (draft.fill_total_q) {
    Status status = fill_total("total_q", p.batch, p.seqlen_q, p.total_q);
    if (!status.ok()) return status;
  }
  if (draft.fill_total_k) {
    Status status = fill_total("total_k", p.batch, p.seqlen_k, p.total_k);
    if (!status.ok()) return status;
  }
  return std::move(p);
}

}  // namespace

Result<Problem> Problem::parse(std::string_view text) {
  Result<std::vector<Token>> tokens = tokenize(text);
  if (!tokens.ok()) return tokens.status();
  Draft draft;
  FieldsSet fields;
  for (const Token& token : tokens.value()) {
    const Match found = match(token.text);
    if (found.word == nullptr) return word_error(token, unknown_word(token.text));
    Status status = fields.add(token, found.word->sets);
    if (!status.ok()) return status;
    const std::string allowed = found.word->apply(draft, found.value);
    if (allowed.empty()) continue;
    return word_error(token,
                      fmt::format("is not {}, where the value is {}", found.word->usage, allowed));
  }
  return settle(std::move(draft), fields);
}

}  // namespace sirdar
