// The flags of `sirdar attend`, as they were given.
#pragma once

#include "commands.h"

#include <optional>

namespace sirdar::cli {

struct AttendFlags {
  using Text = std::optional<std::string>;
  using Texts = std::vector<std::string>;

  Text q, k, v, layout, dtype;
  Text causal, window, chunk, document_q, document_k, mask, mask_mod;
  Text scale, softcap, bias, alibi, sink, score_mod, dropout;
  Texts tensor, scalar;
  Text cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, page_table;
  Text backend, threads, isa;
  Text out, lse, max_logit;
  Text dout, dlse, dq, dk, dv, dbias, dsink;
  Texts dtensor;
  bool check = false, is_verbose = false;
};

void declare_attend_flags(CLI::App& app, AttendFlags& flags);

}  // namespace sirdar::cli
