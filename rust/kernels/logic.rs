//! Bitwise operations, and the logical ones, which ask of each element only whether it is zero. bool is `u8` here: its sum and
//! maximum are `Any`, its product and minimum `All`, and a byte other than 0 and 1 counts as true and never comes out.

use std::marker::PhantomData;
use std::ops::{BitAnd, BitOr, BitXor};

use super::cast::Plain;
use super::generic::Elementwise;

macro_rules! bitwise {
    ($($name:ident $operator:ident $join:ident: $what:literal;)*) => {$(
        #[doc = $what]
        pub(super) struct $name<T>(PhantomData<T>);

        impl<T: Plain + $operator<Output = T>> Elementwise for $name<T> {
            type Elem = T;
            type Acc = T;
            #[inline(always)]
            fn load(x: T) -> T {
                x
            }
            #[inline(always)]
            fn join(acc: T, next: T) -> T {
                acc.$join(next)
            }
            #[inline(always)]
            fn finish(acc: T, _count: usize) -> T {
                acc
            }
        }
    )*};
}

bitwise! {
    And BitAnd bitand: "Bitwise and.";
    Or BitOr bitor: "Bitwise or.";
    Xor BitXor bitxor: "Bitwise exclusive or.";
}

/// Elements that are true or false.
pub(super) trait Truth {
    type Elem: Plain;
    /// 0 or 1, as wide as an element so that both fill the same registers.
    type Bit: Plain + BitAnd<Output = Self::Bit> + BitOr<Output = Self::Bit> + BitXor<Output = Self::Bit>;
    fn truth(x: Self::Elem) -> Self::Bit;
    /// The element's own 1 or 0.
    fn element(truth: Self::Bit) -> Self::Elem;
}

/// Of a float only the bits are needed: all but the sign say whether it is zero (NaN is not), and `one` is what true looks like.
macro_rules! truths {
    ($($name:ident: $bits:ty, zero unless $mask:expr, one $one:expr;)*) => {$(
        pub(super) struct $name;

        impl Truth for $name {
            type Elem = $bits;
            type Bit = $bits;
            #[inline(always)]
            fn truth(x: $bits) -> $bits {
                <$bits>::from(x & $mask != 0)
            }
            #[inline(always)]
            fn element(truth: $bits) -> $bits {
                if truth != 0 { $one } else { 0 }
            }
        }
    )*};
}

truths! {
    Byte: u8, zero unless u8::MAX, one 1;
    Int16: u16, zero unless u16::MAX, one 1;
    Int32: u32, zero unless u32::MAX, one 1;
    Int64: u64, zero unless u64::MAX, one 1;
    Float16: u16, zero unless u16::MAX >> 1, one 0x3c00;
    BFloat16: u16, zero unless u16::MAX >> 1, one 0x3f80;
    Float32: u32, zero unless u32::MAX >> 1, one 1f32.to_bits();
    Float64: u64, zero unless u64::MAX >> 1, one 1f64.to_bits();
}

/// A complex number is true if either part is, and true is 1 + 0i.
pub(super) struct Pair<T>(PhantomData<T>);

impl<T: Truth> Truth for Pair<T>
where
    [T::Elem; 2]: Plain,
{
    type Elem = [T::Elem; 2];
    type Bit = T::Bit;
    #[inline(always)]
    fn truth([re, im]: [T::Elem; 2]) -> T::Bit {
        T::truth(re) | T::truth(im)
    }
    #[inline(always)]
    fn element(truth: T::Bit) -> [T::Elem; 2] {
        [T::element(truth), T::Elem::default()]
    }
}

macro_rules! logical {
    ($($name:ident $join:ident: $what:literal;)*) => {$(
        #[doc = $what]
        pub(super) struct $name<T>(PhantomData<T>);

        impl<T: Truth> Elementwise for $name<T> {
            type Elem = T::Elem;
            type Acc = T::Bit;
            #[inline(always)]
            fn load(x: T::Elem) -> T::Bit {
                T::truth(x)
            }
            #[inline(always)]
            fn join(acc: T::Bit, next: T::Bit) -> T::Bit {
                acc.$join(next)
            }
            #[inline(always)]
            fn finish(acc: T::Bit, _count: usize) -> T::Elem {
                T::element(acc)
            }
        }
    )*};
}

logical! {
    All bitand: "True if every source is.";
    Any bitor: "True if any source is.";
    Odd bitxor: "True if an odd number of sources is.";
}
