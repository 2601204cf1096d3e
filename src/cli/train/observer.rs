//! What a person sees of a run: a progress bar where stderr is a terminal, a line a validation everywhere.

use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use setrank::train::Trainer;
use setrank::train::trainer::{Observer, StepReport, ValidationReport};

/// Follows a run: bar, lines and logs.
pub struct Reporter {
    bar: ProgressBar,
    select: String,
    started: Instant,
    documents: usize,
    loss: Option<f64>,
    valid: String,
}

impl Reporter {
    pub fn new(_folder: &Path, resumed_at: u64, trainer: &Trainer<'_>) -> anyhow::Result<Self> {
        let bar = match trainer.total_steps() {
            Some(total) => ProgressBar::new(total).with_style(ProgressStyle::with_template(
                "step {pos} of {len} {wide_bar} {msg}, at most {eta} left",
            )?),
            None => ProgressBar::new_spinner()
                .with_style(ProgressStyle::with_template("step {pos} {msg}, {elapsed}")?),
        };
        bar.enable_steady_tick(Duration::from_millis(200));
        bar.set_position(resumed_at);
        bar.reset_eta();
        Ok(Reporter {
            bar,
            select: trainer.selects(),
            started: Instant::now(),
            documents: 0,
            loss: None,
            valid: String::new(),
        })
    }

    /// Takes the bar away and tells the total.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
        let elapsed = self.started.elapsed();
        eprintln!(
            "{} documents in {}: {:.0} a second",
            self.documents,
            HumanDuration(elapsed),
            self.documents as f64 / elapsed.as_secs_f64()
        );
    }
}

impl Observer for Reporter {
    fn step(&mut self, report: &StepReport) -> setrank::Result<()> {
        self.documents += report.documents;
        // A running mean: single batches jump.
        let loss = self.loss.map_or(report.loss, |loss| 0.95 * loss + 0.05 * report.loss);
        self.loss = Some(loss);
        let rate = self.documents as f64 / self.started.elapsed().as_secs_f64();
        self.bar.set_position(report.step);
        self.bar.set_message(format!("loss {loss:.4}{}, {rate:.0} documents/s", self.valid));
        Ok(())
    }

    fn validation(&mut self, report: &ValidationReport) -> setrank::Result<()> {
        let mut line = format!("epoch {} step {} loss {:.4}", report.epoch, report.step, report.train_loss);
        if let Some(valid) = report.valid {
            self.valid = format!(", valid {} {:.4}", self.select, valid.metric);
            line += &format!(" valid loss {:.4} {} {:.4}", valid.loss, self.select, valid.metric);
        }
        if report.is_best && report.valid.is_some() {
            line += " (best)";
        }
        self.bar.suspend(|| eprintln!("{line}"));
        Ok(())
    }
}
