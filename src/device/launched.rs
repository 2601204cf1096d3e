//! The newest launch, which a failure that shows only later is told with.

use super::{DeviceError, Parameter, Plan};

/// A launch that the driver took.
#[derive(Debug)]
pub(super) struct Launched {
    plan: Plan,
    parameter: Vec<u8>,
    shapes: fn(&[u8]) -> String,
    /// What the graph is of that it was launched in, and how many kernels that has.
    pub graph: Option<(&'static str, usize)>,
}

impl Launched {
    /// Puts a launch in the place of the one before.
    pub fn remember<P: Parameter>(last: &mut Option<Self>, plan: &Plan, parameter: &P) {
        let launched = last.get_or_insert_with(|| Launched {
            plan: *plan,
            parameter: Vec::new(),
            shapes: shapes::<P>,
            graph: None,
        });
        launched.plan = *plan;
        launched.shapes = shapes::<P>;
        launched.graph = None;
        launched.parameter.clear();
        // SAFETY: the bytes of a parameter that is alive and has no padding.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const *parameter).cast::<u8>(), size_of::<P>()) };
        launched.parameter.extend_from_slice(bytes);
    }

    /// A kernel's failure, of this launch or of one before it, that was seen while something else was done.
    pub fn failed(&self, action: &str, message: &str) -> DeviceError {
        let or = match self.graph {
            None => String::new(),
            Some((what, kernels)) => format!(", in its graph ({what}, {kernels} kernels) or before it"),
        };
        DeviceError::Launch {
            plan: self.plan,
            shapes: (self.shapes)(&self.parameter),
            message: format!("{message}, seen while {action}; it may be of an earlier launch{or}"),
        }
    }
}

/// The shapes of a parameter of type `P`, which `bytes` are.
fn shapes<P: Parameter>(bytes: &[u8]) -> String {
    assert_eq!(bytes.len(), size_of::<P>());
    // SAFETY: the bytes were copied from a `P`.
    unsafe { bytes.as_ptr().cast::<P>().read_unaligned() }.shapes()
}
