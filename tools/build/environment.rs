//! Variables of the environment: paths and words, all of them text.

use std::ffi::OsString;
use std::path::PathBuf;

use super::error::Error;

/// The environment's variables, as a function so that tests can make them up.
pub type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// A variable that is text; None if it is not set.
pub fn text(variable: Variable, name: &'static str) -> Result<Option<String>, Error> {
    let value = variable(name).map(OsString::into_string).transpose();
    value.map_err(|value| Error::NotText { variable: name, value })
}

/// Refuses variables that are set and no text: what reads them would take them for unset, or for others.
pub fn check(variable: Variable, names: &[&'static str]) -> Result<(), Error> {
    names.iter().try_for_each(|name| text(variable, name).map(drop))
}

/// Whether it is built for clippy, which keeps that apart and runs nothing: kernels would be compiled for nobody.
pub fn for_lints(variable: Variable) -> bool {
    let wrapper = variable("RUSTC_WORKSPACE_WRAPPER").map(PathBuf::from);
    wrapper.is_some_and(|wrapper| wrapper.file_stem().is_some_and(|name| name == "clippy-driver"))
}
