//! Values of the 32 lanes of a warp, and functions on them: a function of one lane's values becomes a loop over all
//! lanes, chosen once when a kernel is decoded.

use super::types::Type;

/// Lanes of a warp.
pub(super) const LANES: usize = 32;

/// A register: each lane's bits, zeros above the register's width.
pub(super) type Lanes = [u64; LANES];

/// A value that a register's bits stand for.
pub(super) trait Value: Copy + 'static {
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! unsigned_values {
    ($($type:ty)*) => {$(
        impl Value for $type {
            fn of(bits: u64) -> Self {
                bits as Self
            }
            fn bits(self) -> u64 {
                self as u64
            }
        }
    )*};
}
unsigned_values!(u8 u16 u32 u64);

macro_rules! signed_values {
    ($($type:ty, $unsigned:ty;)*) => {$(
        impl Value for $type {
            fn of(bits: u64) -> Self {
                bits as Self
            }
            fn bits(self) -> u64 {
                self as $unsigned as u64
            }
        }
    )*};
}
signed_values!(i8, u8; i16, u16; i32, u32; i64, u64;);

impl Value for f32 {
    fn of(bits: u64) -> Self {
        Self::from_bits(bits as u32)
    }
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Value for f64 {
    fn of(bits: u64) -> Self {
        Self::from_bits(bits)
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

type One = dyn Fn(&Lanes) -> Lanes + Send + Sync;
type Two = dyn Fn(&Lanes, &Lanes) -> Lanes + Send + Sync;
type Three = dyn Fn(&Lanes, &Lanes, &Lanes) -> Lanes + Send + Sync;
type Four = dyn Fn(&Lanes, &Lanes, &Lanes, &Lanes) -> Lanes + Send + Sync;

/// A function of registers.
pub(super) enum Function {
    One(Box<One>),
    Two(Box<Two>),
    Three(Box<Three>),
    Four(Box<Four>),
}

impl Function {
    /// How many registers it takes.
    pub fn sources(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Two(_) => 2,
            Self::Three(_) => 3,
            Self::Four(_) => 4,
        }
    }
}

/// A comparison: a bit for each lane.
pub(super) type Comparison = Box<dyn Fn(&Lanes, &Lanes) -> u32 + Send + Sync>;

fn each(f: impl Fn(usize) -> u64) -> Lanes {
    let mut lanes = [0; LANES];
    for (lane, to) in lanes.iter_mut().enumerate() {
        *to = f(lane);
    }
    lanes
}

pub(super) fn one<A: Value, R: Value>(f: impl Fn(A) -> R + Send + Sync + 'static) -> Function {
    Function::One(Box::new(move |a| each(|i| f(A::of(a[i])).bits())))
}

pub(super) fn two<A: Value, B: Value, R: Value>(f: impl Fn(A, B) -> R + Send + Sync + 'static) -> Function {
    Function::Two(Box::new(move |a, b| each(|i| f(A::of(a[i]), B::of(b[i])).bits())))
}

pub(super) fn three<A: Value, B: Value, C: Value, R: Value>(
    f: impl Fn(A, B, C) -> R + Send + Sync + 'static,
) -> Function {
    Function::Three(Box::new(move |a, b, c| each(|i| f(A::of(a[i]), B::of(b[i]), C::of(c[i])).bits())))
}

pub(super) fn four<A: Value, B: Value, C: Value, D: Value, R: Value>(
    f: impl Fn(A, B, C, D) -> R + Send + Sync + 'static,
) -> Function {
    Function::Four(Box::new(move |a, b, c, d| {
        each(|i| f(A::of(a[i]), B::of(b[i]), C::of(c[i]), D::of(d[i])).bits())
    }))
}

pub(super) fn compare<A: Value>(f: impl Fn(A, A) -> bool + Send + Sync + 'static) -> Comparison {
    Box::new(move |a, b| {
        let mut lanes = 0;
        for i in 0..LANES {
            lanes |= u32::from(f(A::of(a[i]), A::of(b[i]))) << i;
        }
        lanes
    })
}

/// The numbers of the lanes in a mask, from the lowest.
pub(super) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let lane = left.trailing_zeros();
        left &= left.wrapping_sub(1);
        (lane < 32).then_some(lane as usize)
    })
}

/// An expression with `$int` standing for the Rust integer of a PTX type of 16, 32 or 64 bits, or nothing for any other
/// type; untyped bits are unsigned.
macro_rules! with_integer {
    ($kind:expr, $int:ident => $make:expr) => {{
        use $crate::ptx::types::Type;
        match $kind {
            Type::U16 | Type::B16 => {
                type $int = u16;
                Some($make)
            }
            Type::U32 | Type::B32 => {
                type $int = u32;
                Some($make)
            }
            Type::U64 | Type::B64 => {
                type $int = u64;
                Some($make)
            }
            Type::S16 => {
                type $int = i16;
                Some($make)
            }
            Type::S32 => {
                type $int = i32;
                Some($make)
            }
            Type::S64 => {
                type $int = i64;
                Some($make)
            }
            _ => None,
        }
    }};
}
pub(super) use with_integer;

/// The untyped type of as many bits, for instructions that do not look at what bits mean.
pub(super) fn untyped(kind: Type) -> Type {
    match kind.bits() {
        64 => Type::B64,
        32 => Type::B32,
        16 => Type::B16,
        _ => Type::B8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_to_their_width() {
        assert_eq!((-1i8).bits(), 0xff);
        assert_eq!((-1i32).bits(), 0xffff_ffff);
        assert_eq!(i16::of(0xffff), -1);
        assert_eq!((-0.0f32).bits(), 0x8000_0000);
        assert_eq!(f64::of(1.5f64.bits()), 1.5);
    }

    #[test]
    fn lanes_of_a_mask() {
        assert_eq!(lanes_of(0x8000_0005).collect::<Vec<_>>(), [0, 2, 31]);
        assert_eq!(lanes_of(0).count(), 0);
        assert_eq!(lanes_of(u32::MAX).count(), 32);
    }

    #[test]
    fn a_function_runs_in_every_lane() {
        let Function::Two(add) = two(|a: u32, b: u32| a.wrapping_add(b)) else { panic!() };
        let a = std::array::from_fn(|i| i as u64);
        let sum = add(&a, &[u64::from(u32::MAX); LANES]);
        assert_eq!((sum[0], sum[1], sum[31]), (0xffff_ffff, 0, 30));
        let less = compare(|a: i32, b: i32| a < b);
        assert_eq!(less(&a, &[3; LANES]), 0b111);
    }
}
