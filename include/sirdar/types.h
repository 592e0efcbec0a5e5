/* The lists that every part of Sirdar shares: one row is one fact.
 * Read by C99, C++20 and (later) NVRTC, so it includes nothing and declares no types of its own.
 * A list is expanded with a macro taking the columns named in its comment. One row a line, so
 * clang-format stays out. */
#ifndef SIRDAR_TYPES_H
#define SIRDAR_TYPES_H

/* clang-format off */

/* Element types: name, value (stable, part of the C interface), bits, exponent bits, mantissa bits.
 * Integer and boolean rows have no exponent; a boolean is one byte, 0 is false. */
#define SIRDAR_DTYPES(row)   \
  row(fp32, 0, 32, 8, 23)    \
  row(bf16, 1, 16, 8, 7)     \
  row(fp16, 2, 16, 5, 10)    \
  row(fp8_e4m3, 3, 8, 4, 3)  \
  row(fp8_e5m2, 4, 8, 5, 2)  \
  row(int32, 5, 32, 0, 0)    \
  row(int64, 6, 64, 0, 0)    \
  row(boolean, 7, 8, 0, 0)

/* What went wrong: name, value (stable), meaning. */
#define SIRDAR_STATUS_CODES(row)                                                       \
  row(ok, 0, "success")                                                                \
  row(invalid_argument, 1, "an argument breaks a rule; nothing was written")           \
  row(unsupported, 2, "legal, but no implementation that may run here understands it") \
  row(out_of_memory, 3, "memory could not be had")                                     \
  row(compile_failed, 4, "a kernel did not compile; the message holds the log")        \
  row(device_error, 5, "the device or its driver reported an error")                   \
  row(internal, 6, "a fault of this library")

/* Features of a problem: name, bit, how it is said to a person. An implementation lists the bits it
 * understands; a problem with any other bit never reaches it. Derived from the Problem. */
#define SIRDAR_FEATURES(row)                                   \
  row(backward, 0, "the backward pass")                        \
  row(gqa, 1, "fewer K/V heads than query heads")              \
  row(head_dim_v, 2, "head_dim_v different from head_dim")     \
  row(ragged_q, 3, "cu_seqlens_q")                             \
  row(ragged_kv, 4, "cu_seqlens_k")                            \
  row(paged_kv, 5, "paged K/V")                                \
  row(seqused_q, 6, "seqused_q")                               \
  row(seqused_k, 7, "seqused_k")                               \
  row(causal, 8, "a causal mask")                              \
  row(window, 9, "a sliding window")                           \
  row(chunk, 10, "a chunk mask")                               \
  row(document, 11, "document ids")                            \
  row(mask_tensor, 12, "a boolean mask tensor")                \
  row(mask_mod, 13, "a mask_mod expression")                   \
  row(score_mod, 14, "a score_mod expression")                 \
  row(softcap, 15, "soft-capping")                             \
  row(bias, 16, "an additive bias")                            \
  row(alibi, 17, "ALiBi slopes")                               \
  row(sink, 18, "attention sinks")                             \
  row(dropout, 19, "dropout")                                  \
  row(lse, 20, "lse as an output")                             \
  row(max_logit, 21, "max_logit as an output")                 \
  row(dlse, 22, "a gradient of lse")                           \
  row(dbias, 23, "a gradient of the bias")                     \
  row(dsink, 24, "a gradient of the sinks")                    \
  row(dtensor, 25, "gradients of expression tensors")          \
  row(top_left, 26, "top-left alignment")                      \
  row(dtype_fp32, 27, "fp32 inputs")                           \
  row(dtype_bf16, 28, "bf16 inputs")                           \
  row(dtype_fp16, 29, "fp16 inputs")                           \
  row(dtype_fp8, 30, "fp8 inputs")                             \
  row(dtype_out, 31, "an output of another dtype than the inputs")

/* clang-format on */

#endif
