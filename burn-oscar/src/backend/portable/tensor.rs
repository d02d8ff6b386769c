//! Backend primitives with the operators that the portable bodies need.
//!
//! A default body knows only `B: Backend`, whose operations are free functions on primitives.
//! These two newtypes give them names one can read.

use burn::backend::tensor::{FloatTensor, IndexingUpdateOp, IntTensor};
use burn::backend::{Backend, Scalar, TensorMetadata, get_device_settings};
use burn::tensor::{BoolDType, DType, FloatDType, IntDType, Shape, Slice, TensorData};

use crate::quantizer::layout::CHUNK_TOKENS;

/// A float tensor of any rank.
pub struct Real<B: Backend>(pub FloatTensor<B>);

/// An integer tensor of any rank.
pub struct Ints<B: Backend>(pub IntTensor<B>);

impl<B: Backend> Clone for Real<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Backend> Clone for Ints<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

fn bool_dtype<B: Backend>(tensor: &FloatTensor<B>) -> BoolDType {
    get_device_settings::<B>(&tensor.device()).bool_dtype
}

fn narrow(shape: &Shape, dim: usize, start: usize, length: usize) -> Vec<Slice> {
    (0..shape.num_dims())
        .map(|d| {
            if d == dim {
                Slice::from(start..start + length)
            } else {
                Slice::from(0..shape[d])
            }
        })
        .collect()
}

macro_rules! binary {
    ($($name:ident => $op:ident),*) => {
        $(pub fn $name(self, other: Self) -> Self {
            Self(B::$op(self.0, other.0))
        })*
    };
}

macro_rules! unary {
    ($($name:ident => $op:ident),*) => {
        $(pub fn $name(self) -> Self {
            Self(B::$op(self.0))
        })*
    };
}

macro_rules! along {
    ($($name:ident => $op:ident),*) => {
        $(pub fn $name(self, dim: usize) -> Self {
            Self(B::$op(self.0, dim))
        })*
    };
}

macro_rules! with_scalar {
    ($number:ty: $($name:ident => $op:ident),*) => {
        $(pub fn $name(self, value: $number) -> Self {
            Self(B::$op(self.0, Scalar::from(value)))
        })*
    };
}

macro_rules! shaping {
    ($reshape:ident, $permute:ident, $slice:ident, $cat:ident, $select:ident,
     $select_assign:ident) => {
        pub fn dims(&self) -> Vec<usize> {
            self.0.shape().iter().copied().collect()
        }

        pub fn reshape(self, shape: &[usize]) -> Self {
            Self(B::$reshape(self.0, Shape::from(shape.to_vec())))
        }

        pub fn permute(self, axes: &[usize]) -> Self {
            Self(B::$permute(self.0, axes))
        }

        pub fn narrow(self, dim: usize, start: usize, length: usize) -> Self {
            let slices = narrow(&self.0.shape(), dim, start, length);
            Self(B::$slice(self.0, &slices))
        }

        /// Concatenation; a single part is passed through.
        pub fn cat(mut parts: Vec<Self>, dim: usize) -> Self {
            if parts.len() == 1 {
                return parts.remove(0);
            }
            Self(B::$cat(parts.into_iter().map(|part| part.0).collect(), dim))
        }

        /// Between the order of tokens and that of their parameters in a page, which is its own
        /// inverse ([`token_slot`](crate::quantizer::layout::token_slot)): the last dimensions
        /// hold whole chunks of 64 tokens of `numbers` numbers.
        pub fn swap_rows(self, numbers: usize) -> Self {
            let shape = self.dims();
            let chunks = shape.iter().product::<usize>() / (CHUNK_TOKENS * numbers);
            self.reshape(&[chunks, 8, CHUNK_TOKENS / 8, numbers])
                .permute(&[0, 2, 1, 3])
                .reshape(&shape)
        }

        /// The rows named by `indices` along dimension 0.
        pub fn rows(self, indices: Ints<B>) -> Self {
            Self(B::$select(self.0, 0, indices.0))
        }

        /// Overwrites the rows named by `indices` along dimension 0.
        pub fn set_rows(self, indices: Ints<B>, values: Self) -> Self {
            Self(B::$select_assign(
                self.0,
                0,
                indices.0,
                values.0,
                IndexingUpdateOp::Assign,
            ))
        }
    };
}

impl<B: Backend> Real<B> {
    binary!(add => float_add, sub => float_sub, mul => float_mul, div => float_div,
            matmul => float_matmul);
    unary!(floor => float_floor, round => float_round, abs => float_abs, neg => float_neg,
           sqrt => float_sqrt, log => float_log, detach => float_detach);
    along!(max_dim => float_max_dim, min_dim => float_min_dim, sum_dim => float_sum_dim,
           softmax => softmax);
    with_scalar!(f32: add_scalar => float_add_scalar, mul_scalar => float_mul_scalar,
                 div_scalar => float_div_scalar, max_scalar => float_clamp_min);
    shaping!(
        float_reshape,
        float_permute,
        float_slice,
        float_cat,
        float_select,
        float_select_assign
    );

    pub fn from_vec(values: Vec<f32>, shape: &[usize], like: &FloatTensor<B>) -> Self {
        let data = TensorData::new(values, Shape::from(shape.to_vec()));
        Self(B::float_from_data(data, &like.device()))
    }

    pub fn cast(self, dtype: FloatDType) -> Self {
        if self.0.dtype() == DType::from(dtype) {
            return self;
        }
        Self(B::float_cast(self.0, dtype))
    }

    pub fn f32(self) -> Self {
        self.cast(FloatDType::F32)
    }

    /// What is left of the numbers after storage as f16, in f32.
    pub fn through_f16(self) -> Self {
        self.cast(FloatDType::F16).f32()
    }

    /// Ascending along the last dimension.
    pub fn sort_last(self) -> Self {
        let last = self.0.shape().num_dims() - 1;
        Self(B::float_sort(self.0, last, false))
    }

    pub fn clamp(self, min: f32, max: f32) -> Self {
        Self(B::float_clamp(self.0, Scalar::from(min), Scalar::from(max)))
    }

    pub fn max_pair(self, other: Self) -> Self {
        let dtype = bool_dtype::<B>(&other.0);
        let keep = B::float_greater(other.0.clone(), self.0.clone(), dtype);
        Self(B::float_mask_where(self.0, keep, other.0))
    }

    pub fn min_pair(self, other: Self) -> Self {
        self.neg().max_pair(other.neg()).neg()
    }

    /// `value` where `condition` is at most 0, elsewhere what was there.
    pub fn fill_where_not_positive(self, condition: Self, value: f32) -> Self {
        let dtype = bool_dtype::<B>(&condition.0);
        let mask = B::float_lower_equal_elem(condition.0, Scalar::from(0f32), dtype);
        Self(B::float_mask_fill(self.0, mask, Scalar::from(value)))
    }

    /// `other` where `condition` is at most 0, elsewhere what was there.
    pub fn replace_where_not_positive(self, condition: Self, other: Self) -> Self {
        let dtype = bool_dtype::<B>(&condition.0);
        let mask = B::float_lower_equal_elem(condition.0, Scalar::from(0f32), dtype);
        Self(B::float_mask_where(self.0, mask, other.0))
    }

    /// `other` where `a < b`, elsewhere what was there.
    pub fn replace_where_less(self, a: Self, b: Self, other: Self) -> Self {
        let dtype = bool_dtype::<B>(&a.0);
        let mask = B::float_lower(a.0, b.0, dtype);
        Self(B::float_mask_where(self.0, mask, other.0))
    }

    /// Overwrites parts of dimensions, given as (dimension, start, length).
    pub fn assign(self, parts: &[(usize, usize, usize)], values: Self) -> Self {
        let mut slices: Vec<Slice> = (self.0.shape().iter())
            .map(|&length| Slice::from(0..length))
            .collect();
        for &(dim, start, length) in parts {
            slices[dim] = Slice::from(start..start + length);
        }
        Self(B::float_slice_assign(self.0, &slices, values.0))
    }

    pub fn into_u32(self) -> Ints<B> {
        Ints(B::float_into_int(self.0, IntDType::U32))
    }
}

impl<B: Backend> Ints<B> {
    binary!(or => bitwise_or);
    with_scalar!(u32: and_scalar => bitwise_and_scalar, shift_left => bitwise_left_shift_scalar,
                 shift_right => bitwise_right_shift_scalar);
    shaping!(
        int_reshape,
        int_permute,
        int_slice,
        int_cat,
        int_select,
        int_select_assign
    );

    pub fn into_f32(self) -> Real<B> {
        Real(B::int_into_float(self.0, FloatDType::F32))
    }

    pub fn zeros_like_with(&self, shape: &[usize]) -> Self {
        Self(B::int_zeros(
            Shape::from(shape.to_vec()),
            &self.0.device(),
            IntDType::U32,
        ))
    }
}

impl<B: Backend> Real<B> {
    /// Overwrites one token of a slot of `[slots, kv_heads, tokens, head_dim]`.
    pub fn set_token(self, slot: usize, position: usize, token: Self) -> Self {
        let shape = self.0.shape();
        let slices = [
            Slice::from(slot..slot + 1),
            Slice::from(0..shape[1]),
            Slice::from(position..position + 1),
            Slice::from(0..shape[3]),
        ];
        Self(B::float_slice_assign(self.0, &slices, token.0))
    }

    /// Repeats dimensions of length 1 to the shape of `other`.
    pub fn expand_like(self, other: &Self) -> Self {
        Self(B::float_expand(self.0, other.0.shape()))
    }
}
