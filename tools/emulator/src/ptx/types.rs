//! The types of PTX instructions.

/// A type as it ends an opcode or declares a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Pred,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    B8,
    B16,
    B32,
    B64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    F32,
    F64,
}

impl Type {
    /// The type of this name, without its dot.
    pub fn of(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "b8" => Self::B8,
            "b16" => Self::B16,
            "b32" => Self::B32,
            "b64" => Self::B64,
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "tf32" => Self::Tf32,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// Its width; 1 for a predicate.
    pub fn bits(self) -> u32 {
        match self {
            Self::Pred => 1,
            Self::U8 | Self::S8 | Self::B8 => 8,
            Self::U16 | Self::S16 | Self::B16 | Self::F16 | Self::Bf16 => 16,
            Self::U32 | Self::S32 | Self::B32 | Self::F16x2 | Self::Bf16x2 | Self::Tf32 | Self::F32 => 32,
            Self::U64 | Self::S64 | Self::B64 | Self::F64 => 64,
        }
    }

    /// Its width in bytes.
    pub fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// Whether it is a signed integer.
    pub fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    /// Whether it is an integer, signed or not.
    pub fn is_integer(self) -> bool {
        self.is_signed() || matches!(self, Self::U8 | Self::U16 | Self::U32 | Self::U64)
    }

    /// Whether it is bits without a meaning.
    pub fn is_untyped(self) -> bool {
        matches!(self, Self::B8 | Self::B16 | Self::B32 | Self::B64)
    }

    /// Whether values are floating-point numbers, one or two.
    pub fn is_float(self) -> bool {
        !self.is_integer() && !self.is_untyped() && self != Self::Pred
    }
}

/// The low `bits` bits of a value, `bits` from 1 to 64.
pub(super) fn truncate(value: u64, bits: u32) -> u64 {
    value & (u64::MAX >> (64 - bits))
}

/// The low `bits` bits of a value, as a signed number.
pub(super) fn sign_extend(value: u64, bits: u32) -> i64 {
    ((value << (64 - bits)) as i64) >> (64 - bits)
}
