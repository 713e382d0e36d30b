"""The operators of ATen that a graph of ours may call, by their names without the overload.

ATen is more than arithmetic: `from_file` maps a file of the machine into a tensor, to be read and
written, `save` writes one, `empty` gives what an earlier call left in memory. So a graph has only
what is named here, which reckons with tensors that it is given or makes whole ones. The names are
those of the families that convert is tested with, of other encoders of transformers, and of their
close relatives.

Tested by tests/contract/test_torch_gate.py and tests/export/test_program.py.
"""

from __future__ import annotations

_NEW = """
    arange eye full full_like lift_fresh lift_fresh_copy linspace new_full new_ones new_zeros ones
    ones_like scalar_tensor tril_indices triu_indices zeros zeros_like
"""
_SHAPES = """
    adjoint alias broadcast_tensors broadcast_to cat chunk clone concat concatenate
    constant_pad_nd contiguous detach diagonal expand expand_as flatten flip hstack im2col mT
    moveaxis movedim narrow numpy_T pad permute repeat repeat_interleave reshape reshape_as roll
    select slice split split_with_sizes squeeze stack swapaxes swapdims sym_numel sym_size t
    tensor_split tile transpose tril triu unbind unflatten unfold unsqueeze view view_as vstack
    _unsafe_view
"""
_TYPES_AND_CHECKS = """
    item sym_constrain_range sym_constrain_range_for_size to type_as _assert_async _assert_scalar
    _assert_tensor_metadata _local_scalar_dense _to_copy
"""
_NUMBERS = """
    abs acos add addcdiv addcmul asin atan ceil clamp clamp_max clamp_min clip cos cosh diff div
    divide erf exp exp2 expm1 fft_fft fft_fft2 fft_fftn floor floor_divide fmod imag lerp log
    log10 log1p log2 logaddexp maximum minimum mul multiply nan_to_num neg negative pow real
    reciprocal remainder round rsqrt rsub sigmoid sign sin sinh sqrt square sub subtract tan tanh
    true_divide trunc
"""
_TRUTHS = """
    all any bitwise_and bitwise_not bitwise_or bitwise_xor eq equal ge greater greater_equal gt
    isclose isfinite isin isinf isnan le less less_equal logical_and logical_not logical_or
    logical_xor lt ne not_equal where __and__ __or__ __xor__
"""
_OVER_AN_AXIS = """
    amax amin argmax argmin argsort count_nonzero cummax cumprod cumsum linalg_norm
    linalg_vector_norm logsumexp max mean median min nonzero norm prod sort std sum topk var
    var_mean
"""
_LOOK_UPS = """
    bucketize embedding gather index index_add index_put index_select masked_fill masked_scatter
    masked_select one_hot scatter scatter_add searchsorted select_scatter slice_scatter
    take_along_dim
"""
_LAYERS = """
    addmm avg_pool1d baddbmm batch_norm bmm celu conv1d conv2d cosine_similarity dot dropout
    einsum elu feature_dropout gelu glu group_norm hardsigmoid hardswish hardtanh instance_norm
    layer_norm leaky_relu linear log_sigmoid log_softmax matmul max_pool1d mish mm mv
    native_dropout native_group_norm native_layer_norm outer prelu relu relu6 rms_norm
    scaled_dot_product_attention selu silu softmax softplus tensordot _fused_rms_norm _log_softmax
    _safe_softmax _softmax
"""
# Into a tensor that the graph has made: `fill_` of a part of it, as model code is written.
_IN_PLACE = """
    add_ clamp_ copy_ detach_ div_ fill_ index_add_ index_copy_ index_put_ masked_fill_ mul_ neg_
    relu_ scatter_ scatter_add_ sub_ tril_ triu_ zero_
"""
OPERATORS = frozenset(
    " ".join(
        (
            *(_NEW, _SHAPES, _TYPES_AND_CHECKS, _NUMBERS, _TRUTHS, _OVER_AN_AXIS),
            *(_LOOK_UPS, _LAYERS, _IN_PLACE),
        )
    ).split()
)
