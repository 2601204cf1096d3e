//! What a run tells: a progress bar where stderr is a terminal, a line a validation everywhere, and the logs in the
//! model folder: `log.jsonl`, TensorBoard events, and the learning curve drawn from the log.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use serde_json::json;
use setrank::eval::report::describe;
use setrank::train::Trainer;
use setrank::train::log::{Curve, EventWriter, JsonLines};
use setrank::train::trainer::{Observer, StepReport, ValidationReport};

/// File name of the log in a model folder.
const LOG: &str = "log.jsonl";
/// File name of the learning curve in a model folder.
const CURVE: &str = "curve.svg";

/// Follows a run.
pub struct Reporter {
    folder: PathBuf,
    bar: ProgressBar,
    log: JsonLines,
    events: EventWriter,
    metric: String,
    started: Instant,
    documents: usize,
    running_loss: Option<f64>,
    valid: String,
}

impl Reporter {
    /// Logs of a run that stands at step `resumed_at`, into `folder`.
    pub fn new(folder: &Path, resumed_at: u64, trainer: &Trainer<'_>) -> anyhow::Result<Self> {
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
        let path = folder.join(LOG);
        if trainer.validates() {
            let metric = trainer.metric();
            tell!("validation: {metric} ({})", describe(metric, &trainer.conventions()));
        }
        let log =
            if resumed_at > 0 { JsonLines::resume(&path, resumed_at)? } else { JsonLines::create(&path)? };
        Ok(Reporter {
            folder: folder.to_path_buf(),
            bar,
            log,
            events: EventWriter::create(folder)?,
            metric: trainer.metric().to_string(),
            started: Instant::now(),
            documents: 0,
            running_loss: None,
            valid: String::new(),
        })
    }

    /// Takes the bar away, tells the total and draws the curve.
    pub fn finish(&self) -> anyhow::Result<()> {
        self.bar.finish_and_clear();
        let elapsed = self.started.elapsed();
        if self.documents == 0 {
            return Ok(());
        }
        tell!("{} documents in {}: {:.0} a second", self.documents, HumanDuration(elapsed), self.rate());
        let mut curve = Curve {
            title: "Learning curve".into(),
            loss: Vec::new(),
            metric_name: self.metric.clone(),
            metric: Vec::new(),
        };
        // From the log, which has the steps before a resumption too.
        let path = self.folder.join(LOG);
        let text = std::fs::read_to_string(&path).map_err(|e| setrank::Error::io("read", &path, e))?;
        for line in text.lines() {
            let record: serde_json::Value = serde_json::from_str(line)?;
            let Some(step) = record["step"].as_u64() else { continue };
            curve.loss.extend(record["train_loss"].as_f64().map(|loss| (step, loss)));
            curve.metric.extend(record[&self.metric].as_f64().map(|value| (step, value)));
        }
        if curve.loss.is_empty() {
            return Ok(());
        }
        Ok(curve.write_svg(&self.folder.join(CURVE))?)
    }

    fn rate(&self) -> f64 {
        self.documents as f64 / self.started.elapsed().as_secs_f64()
    }
}

impl Observer for Reporter {
    fn step(&mut self, report: &StepReport) -> setrank::Result<()> {
        self.documents += report.documents;
        // A running mean: single batches jump.
        let loss = self.running_loss.map_or(report.loss, |loss| 0.95 * loss + 0.05 * report.loss);
        self.running_loss = Some(loss);
        let rate = self.rate();
        self.bar.set_position(report.step);
        self.bar.set_message(format!("loss {loss:.4}{}, {rate:.0} documents/s", self.valid));
        self.log.write(&json!({
            "step": report.step,
            "epoch": report.epoch,
            "loss": report.loss,
            "lr": report.lr,
            "gradient_norm": report.gradient_norm,
            "documents": report.documents,
            "documents_per_s": rate,
        }))?;
        let scalars = [
            ("train/loss", report.loss as f32),
            ("train/lr", report.lr as f32),
            ("train/gradient_norm", report.gradient_norm as f32),
            ("train/documents_per_s", rate as f32),
        ];
        self.events.scalars(report.step, &scalars)
    }

    fn validation(&mut self, report: &ValidationReport) -> setrank::Result<()> {
        let mut line = format!("epoch {} step {} loss {:.4}", report.epoch, report.step, report.train_loss);
        let mut record = json!({"step": report.step, "epoch": report.epoch, "train_loss": report.train_loss});
        if let Some(valid) = report.valid {
            self.valid = format!(", valid {} {:.4}", self.metric, valid.metric);
            line += &format!(" valid loss {:.4} {} {:.4}", valid.loss, self.metric, valid.metric);
            record["valid_loss"] = json!(valid.loss);
            record[&self.metric] = json!(valid.metric);
            record["best"] = json!(report.is_best);
            let metric = format!("valid/{}", self.metric);
            let scalars = [("valid/loss", valid.loss as f32), (&metric, valid.metric as f32)];
            self.events.scalars(report.step, &scalars)?;
            if report.is_best {
                line += " (best)";
            }
        }
        self.bar.suspend(|| {
            tell!("{line}");
        });
        self.log.write(&record)
    }
}
