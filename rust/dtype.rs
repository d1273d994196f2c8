//! Element types and reduction operations: names, sizes and which go together. A leaf; knows no ranks and no memory.

use std::fmt;

/// Type of one array element, native byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DType {
    Bool = 1,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float16,
    BFloat16,
    Float32,
    Float64,
    Complex64,
    Complex128,
}

impl DType {
    pub const ALL: [DType; 15] = [
        DType::Bool,
        DType::Int8,
        DType::Int16,
        DType::Int32,
        DType::Int64,
        DType::UInt8,
        DType::UInt16,
        DType::UInt32,
        DType::UInt64,
        DType::Float16,
        DType::BFloat16,
        DType::Float32,
        DType::Float64,
        DType::Complex64,
        DType::Complex128,
    ];

    /// By numpy's name.
    pub fn parse(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// numpy's name of the type.
    pub fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::Int8 => "int8",
            DType::Int16 => "int16",
            DType::Int32 => "int32",
            DType::Int64 => "int64",
            DType::UInt8 => "uint8",
            DType::UInt16 => "uint16",
            DType::UInt32 => "uint32",
            DType::UInt64 => "uint64",
            DType::Float16 => "float16",
            DType::BFloat16 => "bfloat16",
            DType::Float32 => "float32",
            DType::Float64 => "float64",
            DType::Complex64 => "complex64",
            DType::Complex128 => "complex128",
        }
    }

    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            DType::Bool | DType::Int8 | DType::UInt8 => 1,
            DType::Int16 | DType::UInt16 | DType::Float16 | DType::BFloat16 => 2,
            DType::Int32 | DType::UInt32 | DType::Float32 => 4,
            DType::Int64 | DType::UInt64 | DType::Float64 | DType::Complex64 => 8,
            DType::Complex128 => 16,
        }
    }

    /// Alignment that the kernels ask of an array, in bytes: that of the scalar (the half of a complex number).
    pub fn align(self) -> usize {
        match self {
            DType::Complex64 => 4,
            DType::Complex128 => 8,
            other => other.size(),
        }
    }

    pub fn is_complex(self) -> bool {
        matches!(self, DType::Complex64 | DType::Complex128)
    }

    pub fn is_float(self) -> bool {
        matches!(self, DType::Float16 | DType::BFloat16 | DType::Float32 | DType::Float64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How elements of different ranks are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    Sum = 1,
    Prod,
    Min,
    Max,
    Avg,
    BAnd,
    BOr,
    BXor,
    LAnd,
    LOr,
}

impl ReduceOp {
    pub const ALL: [ReduceOp; 10] = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Avg,
        ReduceOp::BAnd,
        ReduceOp::BOr,
        ReduceOp::BXor,
        ReduceOp::LAnd,
        ReduceOp::LOr,
    ];

    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Avg => "avg",
            ReduceOp::BAnd => "band",
            ReduceOp::BOr => "bor",
            ReduceOp::BXor => "bxor",
            ReduceOp::LAnd => "land",
            ReduceOp::LOr => "lor",
        }
    }

    pub fn parse(name: &str) -> Option<ReduceOp> {
        ReduceOp::ALL.into_iter().find(|op| op.name() == name)
    }

    /// Whether `dtype` has this operation; the text says why not and what to do.
    pub fn check(self, dtype: DType) -> Result<(), String> {
        use ReduceOp::*;
        match self {
            Avg if !dtype.is_float() && !dtype.is_complex() => Err(format!(
                "op 'avg' of {dtype} would not be exact: cast to a float type first, or use 'sum' and divide as you need"
            )),
            Min | Max if dtype.is_complex() => Err(format!("op '{self}' of {dtype}: complex numbers have no order")),
            BAnd | BOr | BXor if dtype.is_float() || dtype.is_complex() => {
                Err(format!("op '{self}' of {dtype}: bitwise operations take integers and bool"))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for op in ReduceOp::ALL {
            assert_eq!(ReduceOp::parse(op.name()), Some(op));
        }
        assert_eq!(ReduceOp::parse("summ"), None);
    }

    #[test]
    fn operations_that_make_no_sense_are_refused() {
        assert!(ReduceOp::Avg.check(DType::Int32).is_err());
        assert!(ReduceOp::Avg.check(DType::Bool).is_err());
        assert!(ReduceOp::Avg.check(DType::Complex64).is_ok());
        assert!(ReduceOp::Min.check(DType::Complex128).is_err());
        assert!(ReduceOp::BXor.check(DType::Float32).is_err());
        assert!(ReduceOp::BXor.check(DType::Bool).is_ok());
        assert!(ReduceOp::LAnd.check(DType::Float64).is_ok());
    }
}
