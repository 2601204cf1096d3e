//! What a check found.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use crate::mismatch::Mismatch;

/// What a check found.
pub enum Outcome {
    /// All was right; what is worth telling.
    Passed(Value),
    /// Results are wrong.
    Failed(Vec<Mismatch>),
    /// It says nothing of this card, and why.
    Skipped(String),
    /// It did not come to a result: what the driver or a library says.
    Error(String),
}

impl Outcome {
    /// Passed, with nothing to tell, unless there are mismatches.
    pub fn of(mismatches: Vec<Mismatch>, told: Value) -> Self {
        if mismatches.is_empty() { Outcome::Passed(told) } else { Outcome::Failed(mismatches) }
    }

    /// A line of the report.
    pub fn to_json(&self, name: &str, took: Duration) -> Value {
        let mut report = json!({ "name": name, "status": self.status(), "seconds": took.as_secs_f64() });
        match self {
            Outcome::Passed(told) => report["told"] = told.clone(),
            Outcome::Failed(mismatches) => {
                report["mismatches"] = mismatches.iter().map(Mismatch::to_json).collect();
            }
            Outcome::Skipped(message) | Outcome::Error(message) => report["message"] = json!(message),
        }
        report
    }

    fn status(&self) -> &'static str {
        match self {
            Outcome::Passed(_) => "passed",
            Outcome::Failed(_) => "failed",
            Outcome::Skipped(_) => "skipped",
            Outcome::Error(_) => "error",
        }
    }

    /// 0 where nothing is wrong, 1 for wrong results, 2 where there are none.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Outcome::Passed(_) | Outcome::Skipped(_) => ExitCode::SUCCESS,
            Outcome::Failed(_) => ExitCode::from(1),
            Outcome::Error(_) => ExitCode::from(2),
        }
    }
}
