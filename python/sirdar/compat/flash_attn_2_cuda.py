"""The five entry points of FlashAttention-2's extension module, which some frameworks call by position.
`out_`, `dq_`, ... are written if they are given."""

from ._common import written
from ._memory import check_out
from .flash_attn import flash_attn_interface as _interface


def _check_generator(generator):
    if generator is not None:
        raise RuntimeError(
            "`generator` argument is no longer supported; call torch.manual_seed before instead."
        )


def _result(out_, made):
    out, *rest = made
    return [written(out_, out), *rest]


def fwd(
    q, k, v, out_, alibi_slopes_, p_dropout, softmax_scale, is_causal, window_size_left,
    window_size_right, softcap, return_softmax, gen_=None,
):  # fmt: skip
    """[out, lse, S_dmask, rng_state]"""
    _check_generator(gen_)
    check_out(out_, q, v)
    made = _interface._flash_attn_forward(
        q, k, v, p_dropout, softmax_scale, is_causal, window_size_left, window_size_right, softcap,
        alibi_slopes_, return_softmax,
    )  # fmt: skip
    return _result(out_, made)


def varlen_fwd(
    q, k, v, out_, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k_, block_table_, alibi_slopes_,
    max_seqlen_q, max_seqlen_k, p_dropout, softmax_scale, zero_tensors, is_causal, window_size_left,
    window_size_right, softcap, return_softmax, gen_=None, num_splits=0,
):  # fmt: skip
    """[out, lse, S_dmask, rng_state]"""
    _check_generator(gen_)
    check_out(out_, q, v)
    made = _interface._flash_attn_varlen_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, p_dropout, softmax_scale,
        is_causal, window_size_left, window_size_right, softcap, alibi_slopes_, return_softmax,
        block_table_, leftpad_k_, seqused_k, zero_tensors, num_splits,
    )  # fmt: skip
    return _result(out_, made)


def bwd(
    dout, q, k, v, out, softmax_lse, dq_, dk_, dv_, alibi_slopes_, p_dropout, softmax_scale, is_causal,
    window_size_left, window_size_right, softcap, deterministic, gen_=None, rng_state=None,
):  # fmt: skip
    """[dq, dk, dv, softmax_d]"""
    _check_generator(gen_)
    grads = [given if given is not None else like.new_empty(like.shape)
             for given, like in ((dq_, q), (dk_, k), (dv_, v))]  # fmt: skip
    product = _interface._flash_attn_backward(
        dout, q, k, v, out, softmax_lse, *grads, p_dropout, softmax_scale, is_causal, window_size_left,
        window_size_right, softcap, alibi_slopes_, deterministic, rng_state,
    )  # fmt: skip
    return [*grads, product]


def varlen_bwd(
    dout, q, k, v, out, softmax_lse, dq_, dk_, dv_, cu_seqlens_q, cu_seqlens_k, alibi_slopes_,
    max_seqlen_q, max_seqlen_k, p_dropout, softmax_scale, zero_tensors, is_causal, window_size_left,
    window_size_right, softcap, deterministic, gen_=None, rng_state=None,
):  # fmt: skip
    """[dq, dk, dv, softmax_d]"""
    _check_generator(gen_)
    grads = [given if given is not None else like.new_empty(like.shape)
             for given, like in ((dq_, q), (dk_, k), (dv_, v))]  # fmt: skip
    product = _interface._flash_attn_varlen_backward(
        dout, q, k, v, out, softmax_lse, *grads, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        p_dropout, softmax_scale, is_causal, window_size_left, window_size_right, softcap,
        alibi_slopes_, deterministic, rng_state, zero_tensors,
    )  # fmt: skip
    return [*grads, product]


def fwd_kvcache(
    q, kcache, vcache, k_, v_, seqlens_k_, rotary_cos_, rotary_sin_, cache_batch_idx_, leftpad_k_,
    block_table_, alibi_slopes_, out_, softmax_scale, is_causal, window_size_left, window_size_right,
    softcap, is_rotary_interleaved, num_splits,
):  # fmt: skip
    """[out, lse]"""
    check_out(out_, q, vcache)
    made = _interface.flash_attn_with_kvcache(
        q, kcache, vcache, k_, v_, rotary_cos_, rotary_sin_, seqlens_k_, cache_batch_idx_, leftpad_k_,
        block_table_, softmax_scale, is_causal, (window_size_left, window_size_right), softcap,
        is_rotary_interleaved, alibi_slopes_, num_splits, True,
    )  # fmt: skip
    return _result(out_, made)
