#include "flag_terms.h"

#include <fmt/format.h>

#include <string_view>

namespace sirdar::cli {
namespace {

struct Term {
  std::string_view argument, flag;
};

// What is not here is named in flags as it is in the library, but for the dashes. Sizes have no
// flag of their own: they come from the shape of a tensor.
constexpr Term kTerms[] = {
    {"out", "-o"},
    {"mask_axes", "--mask"},
    {"bias_axes", "--bias"},
    {"dtype_bias", "--bias"},
    {"tensors", "--tensor"},
    {"scalars", "--scalar"},
    {"dtensors", "--dtensor"},
    {"dropout_p", "--dropout"},
    {"dropout_seed", "--dropout"},
    {"dropout_offset", "--dropout"},
    {"softmax_scale", "--scale"},
    {"chunk_size", "--chunk"},
    {"window_left", "--window"},
    {"window_right", "--window"},
    {"alignment", "--causal"},
    {"dtype_q", "--q"},
    {"dtype_kv", "--k"},
    {"total_q", "--cu-seqlens-q"},
    {"total_k", "--cu-seqlens-k"},
    {"num_threads", "--threads"},
    {"knobs", "--knob"},
    {"implementation", "--backend"},
    {"arch", "--arch"},
};

constexpr std::string_view kSameInFlags[] = {
    "q",         "k",         "v",     "lse",         "max_logit",  "cu_seqlens_q",
    "mask",      "bias",      "alibi", "sink",        "score_mod",  "cu_seqlens_k",
    "mask_mod",  "softcap",   "dout",  "dlse",        "dq",         "dk",
    "dv",        "dbias",     "dsink", "page_table",  "document_q", "document_k",
    "seqused_q", "seqused_k", "isa",   "fast_memory", "device",
};

constexpr Term kSizes[] = {
    {"batch", "--q"},    {"seqlen_q", "--q"},   {"num_heads_q", "--q"},  {"head_dim", "--q"},
    {"seqlen_k", "--k"}, {"head_dim_v", "--v"}, {"num_heads_kv", "--k"}, {"page_size", "--k"},
};

std::string flag_of(std::string_view argument) {
  for (const Term& term : kTerms) {
    if (term.argument == argument) return std::string(term.flag);
  }
  for (const std::string_view name : kSameInFlags) {
    if (name != argument) continue;
    std::string flag = "--" + std::string(name);
    for (char& c : flag) c = c == '_' ? '-' : c;
    return flag;
  }
  return "";
}

}  // namespace

Status in_flag_terms(const Status& status) {
  const std::string_view message = status.message();
  const std::string argument = status.argument();
  if (argument.empty() || !message.starts_with(argument + ": ")) return status;
  const std::string_view rest = message.substr(argument.size() + 2);
  for (const Term& size : kSizes) {
    if (size.argument == argument) {
      return Status(status.code(), fmt::format("{}: {}: {}", size.flag, argument, rest),
                    std::string(size.flag), status.rule());
    }
  }
  const std::string flag = flag_of(argument);
  if (flag.empty()) return status;
  return Status(status.code(), fmt::format("{}: {}", flag, rest), flag, status.rule());
}

}  // namespace sirdar::cli
