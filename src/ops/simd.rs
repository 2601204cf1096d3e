//! Which vector instructions the machine has, and functions compiled once for each.

use std::sync::OnceLock;

use crate::{Error, Result};

/// A level of vector instructions; the best that the machine has is chosen at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every machine of the target has.
    Portable,
    /// AVX2 and FMA: 8 float32 at a time.
    Avx2,
    /// AVX-512 F, BW, DQ and VL: 16 float32 at a time.
    Avx512,
}

impl Level {
    /// All levels that this machine has, the best last.
    pub fn available() -> impl Iterator<Item = Level> {
        [Level::Portable, Level::Avx2, Level::Avx512].into_iter().filter(|level| level.is_available())
    }

    /// Its name, as `SETRANK_SIMD` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        match self {
            Level::Portable => true,
            Level::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            Level::Avx512 => {
                Level::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_available(self) -> bool {
        self == Level::Portable
    }
}

/// The environment variable that asks for a level.
const VARIABLE: &str = "SETRANK_SIMD";

/// The level that the environment variable `SETRANK_SIMD` asks for, if it does.
///
/// # Errors
/// Where it names no level of this machine.
pub fn asked() -> Result<Option<Level>> {
    let Some(name) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) else { return Ok(None) };
    let found = Level::available().find(|level| name == level.name());
    found.map(Some).ok_or_else(|| {
        let levels: Vec<&str> = Level::available().map(Level::name).collect();
        Error::config(format!(
            "{VARIABLE}={}: the vector instructions of this machine are {}",
            name.display(),
            levels.join(", ")
        ))
    })
}

/// The level in use: the one that is [`asked`] for, else the best.
#[inline]
pub fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let best = Level::available().last().unwrap_or(Level::Portable);
        asked().ok().flatten().unwrap_or(best)
    })
}

/// Compiles a function for every [`Level`] and calls the one in use. Its loops become vector code of that level;
/// no operation is fused or reordered, so all levels give the same bits.
macro_rules! vectorized {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<$T:ident: Scalar>($($arg:ident: $ty:ty),* $(,)?)
     $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name<$T: Scalar>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body<$T: Scalar>($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                use $crate::ops::simd::Level;
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                fn avx2<$T: Scalar>($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                fn avx512<$T: Scalar>($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                match $crate::ops::simd::level() {
                    // SAFETY: the machine has the level in use.
                    Level::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    Level::Avx2 => return unsafe { avx2($($arg),*) },
                    Level::Portable => {}
                }
            }
            body($($arg),*)
        }
    };
}
pub(crate) use vectorized;
