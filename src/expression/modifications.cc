#include <fmt/format.h>

#include "expression/names.h"

namespace sirdar::expression {
namespace {

Status unread(std::string_view argument, std::string_view name) {
  return {StatusCode::invalid_argument,
          fmt::format("{}: '{}' is read by neither score_mod nor mask_mod; remove it or use it",
                      argument, name),
          std::string(argument)};
}

}  // namespace

Result<Modifications> parse(const Problem& problem) {
  Modifications modifications;
  auto parse_one = [&](Kind kind, const std::string& text,
                       std::optional<Program>& program) -> Status {
    if (text.empty()) return {};
    Result<Program> parsed = Program::parse(kind, text, problem.tensors, problem.scalars);
    if (!parsed.ok()) return parsed.status();
    program = std::move(parsed).value();
    return {};
  };
  if (Status status = check_names(problem.tensors, problem.scalars); !status.ok()) return status;
  Status status = parse_one(Kind::score_mod, problem.score_mod, modifications.score_mod);
  if (status.ok()) status = parse_one(Kind::mask_mod, problem.mask_mod, modifications.mask_mod);
  if (!status.ok()) return status;

  const auto& [score_mod, mask_mod] = modifications;
  for (size_t i = 0; i < problem.tensors.size(); ++i) {
    const bool is_read =
        (score_mod && score_mod->reads_tensor(i)) || (mask_mod && mask_mod->reads_tensor(i));
    if (!is_read) return unread("tensors", problem.tensors[i].name);
  }
  for (size_t i = 0; i < problem.scalars.size(); ++i) {
    const bool is_read =
        (score_mod && score_mod->reads_scalar(i)) || (mask_mod && mask_mod->reads_scalar(i));
    if (!is_read) return unread("scalars", problem.scalars[i]);
  }
  return modifications;
}

}  // namespace sirdar::expression
