//! The training runs of a cross-validation, some side by side, those skipped that are done.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use setrank::data::batch::Batcher;
use setrank::data::concat::concat;
use setrank::data::{Dataset, Query};
use setrank::files::write_atomically;
use setrank::model::device::choose;
use setrank::model::{SetRank, scorer};
use setrank::train::config::Select;
use setrank::train::crossval::Fold;
use setrank::train::state::{STATE, State, fingerprint};
use setrank::train::trainer::{Observer, StepReport, Stop, ValidationReport};
use setrank::train::{Checkpoint, TrainConfig, Trainer};

use super::record::{self, RESULT, Record};
use crate::cli::{interrupt, train};

/// All runs, and what they need.
pub struct Plan<'a> {
    pub config: &'a TrainConfig,
    /// `None` where no fold needs the part.
    pub parts: &'a [Option<Dataset>],
    pub folder: &'a Path,
    /// Fold by fold.
    pub runs: Vec<Run<'a>>,
    /// Whether the models score the parts to test on.
    pub test: bool,
}

/// One run.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    pub fold: &'a Fold,
    pub seed: u64,
}

/// What came of one run.
pub struct Done {
    pub record: Record,
    pub valid: Scored,
    /// Empty where nothing is tested.
    pub test: Scored,
}

/// What a model says of a part.
#[derive(Default)]
pub struct Scored {
    /// `[N]` by row
    pub scores: Vec<f32>,
    /// The rows that the model reranked; `None` = all
    pub kept: Option<Vec<bool>>,
}

/// Does all runs of `plan`, `jobs` side by side, and returns them in its order. What a run gives depends neither on
/// `jobs` nor on the number of threads.
pub fn all(plan: &Plan<'_>, jobs: usize) -> anyhow::Result<Vec<Done>> {
    let threads = rayon::current_num_threads();
    let jobs = jobs.min(plan.runs.len());
    let shared = Shared {
        plan,
        next: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
        training_data: plan.runs.iter().map(|_| Mutex::new(Weak::new())).collect(),
        bar: ProgressBar::new(plan.runs.len() as u64).with_style(
            ProgressStyle::with_template("run {pos} of {len} {wide_bar} {msg} {eta} left")
                .expect("a valid template"),
        ),
        interrupted: interrupt::cooperate(),
    };
    let pools: Vec<rayon::ThreadPool> = (0..jobs)
        .map(|job| {
            let own = (threads / jobs + usize::from(job < threads % jobs)).max(1);
            rayon::ThreadPoolBuilder::new().num_threads(own).build().context("cannot start the threads")
        })
        .collect::<Result<_, _>>()?;
    let outcomes: Vec<anyhow::Result<Vec<(usize, Done)>>> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            pools.iter().map(|pool| scope.spawn(|| pool.install(|| shared.work()))).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err(anyhow!("a run panicked"))))
            .collect()
    });
    shared.bar.finish_and_clear();
    let mut done = Vec::new();
    // The first error in the order of the workers; the others only stopped.
    for outcome in outcomes {
        done.extend(outcome?);
    }
    if done.len() < plan.runs.len() {
        bail!("interrupted; the same command goes on, and does again only the runs that are not whole");
    }
    done.sort_by_key(|&(index, _)| index);
    Ok(done.into_iter().map(|(_, done)| done).collect())
}

/// What the workers share.
struct Shared<'a> {
    plan: &'a Plan<'a>,
    next: AtomicUsize,
    failed: AtomicBool,
    /// Training data of the fold of each run, as long as any worker uses it: only the first of a fold's runs counts.
    training_data: Vec<Mutex<Weak<Dataset>>>,
    bar: ProgressBar,
    interrupted: &'static AtomicBool,
}

impl Shared<'_> {
    /// Takes run after run.
    fn work(&self) -> anyhow::Result<Vec<(usize, Done)>> {
        let mut all = Vec::new();
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(&run) = self.plan.runs.get(index) else { return Ok(all) };
            if self.failed.load(Ordering::Relaxed) || self.interrupted.load(Ordering::Relaxed) {
                return Ok(all);
            }
            let _guard = FailOnPanic(&self.failed);
            match self.run(run).with_context(|| format!("fold {}, seed {}", run.fold.number, run.seed)) {
                Ok(Some(done)) => all.push((index, done)),
                Ok(None) => return Ok(all),
                Err(error) => {
                    self.failed.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
            self.bar.inc(1);
        }
    }

    /// Does one run, or takes it as it was done; `None` where it was interrupted.
    fn run(&self, run: Run<'_>) -> anyhow::Result<Option<Done>> {
        let Plan { config, parts, folder, test, .. } = self.plan;
        let folder = record::run_folder(folder, run.fold.number, run.seed);
        let part = |number: usize| parts[number].as_ref().expect("opened, as a fold needs it");
        let valid = part(run.fold.valid);
        let train = self.training_data(run.fold)?;
        let data = fingerprint(&train).rotate_left(1) ^ fingerprint(valid);
        let record = match record::read(&folder)? {
            Some(record) if record.data != data => bail!(
                "the run in {} is of other data; give another folder with -o, or --overwrite",
                folder.display()
            ),
            Some(record) => record,
            None => match self.train(run, &folder, &train, valid, data, config)? {
                Some(record) => record,
                None => return Ok(None),
            },
        };
        let checkpoint = Checkpoint::load(&folder)?;
        let score = |data: &Dataset| -> anyhow::Result<Scored> {
            let batcher = Batcher::new(data, checkpoint.model.config())?;
            let Checkpoint { model, parameters } = &checkpoint;
            let device = choose(config.asked(), model.config())?.device;
            let scores = scorer::score(&mut *scorer::on(device, model, parameters)?, &batcher, |_| {})?;
            Ok(Scored { scores, kept: batcher.kept().map(<[bool]>::to_vec) })
        };
        let test = if *test { score(part(run.fold.test))? } else { Scored::default() };
        Ok(Some(Done { record, valid: score(valid)?, test }))
    }

    /// The training parts of `fold` as one.
    fn training_data(&self, fold: &Fold) -> setrank::Result<Arc<Dataset>> {
        let first = self.plan.runs.iter().position(|run| run.fold.number == fold.number);
        let slot = &self.training_data[first.expect("a fold of the plan")];
        let mut slot = slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(data) = slot.upgrade() {
            return Ok(data);
        }
        let parts: Vec<&Dataset> =
            fold.train.iter().filter_map(|&part| self.plan.parts[part].as_ref()).collect();
        let data = Arc::new(concat(&parts)?);
        *slot = Arc::downgrade(&data);
        Ok(data)
    }

    fn train(
        &self,
        run: Run<'_>,
        folder: &Path,
        train: &Dataset,
        valid: &Dataset,
        data: u32,
        config: &TrainConfig,
    ) -> anyhow::Result<Option<Record>> {
        let started = Instant::now();
        // Of a run that was not finished.
        if folder.exists() {
            std::fs::remove_dir_all(folder).map_err(|e| setrank::Error::io("remove", folder, e))?;
        }
        std::fs::create_dir_all(folder).map_err(|e| setrank::Error::io("create", folder, e))?;
        let mut config = TrainConfig { seed: run.seed, ..config.clone() };
        config.settle_size(train.num_queries());
        let model = SetRank::new(train::model_config(&config, train)?)?;
        let state = State::new(model.layout().init(config.seed), data, 0);
        let batchers = [train, valid].map(|data| Batcher::new(data, model.config()));
        let [train_batcher, valid_batcher] = batchers;
        let mut trainer = Trainer::new(&config, model, train_batcher?, Some(valid_batcher?), state)?;
        let mut told = Told { bar: &self.bar, run, best: None };
        if trainer.run(folder, &mut told, self.interrupted)? == Stop::Interrupted {
            return Ok(None);
        }
        let best = told.best.context("it ended before it was validated; give more steps")?;
        let valid = best.valid.context("there is no validation data")?;
        let record = Record {
            fold: run.fold.number,
            seed: run.seed,
            queries: train.queries().filter(|query: &Query<'_>| !query.is_empty()).count(),
            steps: trainer.progress().step,
            best_epoch: best.epoch,
            best: if config.select == Select::Loss { valid.loss } else { valid.metric },
            seconds: started.elapsed().as_secs_f64(),
            data,
        };
        // Not to be resumed: a run is whole or done anew.
        let state = folder.join(STATE);
        std::fs::remove_file(&state).map_err(|e| setrank::Error::io("remove", &state, e))?;
        write_atomically(&folder.join(RESULT), |w| writeln!(w, "{}", serde_json::json!(record)))?;
        self.bar.suspend(|| {
            tell!(
                "fold {} seed {}: {} steps, {:.1} s, best in epoch {}: {} {:.4}",
                record.fold,
                record.seed,
                record.steps,
                record.seconds,
                record.best_epoch,
                config.select,
                record.best
            );
        });
        Ok(Some(record))
    }
}

/// Sets the flag where a panic takes it down: the other workers are to stop as after an error.
struct FailOnPanic<'a>(&'a AtomicBool);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Says where a run is.
struct Told<'a> {
    bar: &'a ProgressBar,
    run: Run<'a>,
    /// The validation of the model that is kept.
    best: Option<ValidationReport>,
}

impl Observer for Told<'_> {
    fn step(&mut self, _: &StepReport) -> setrank::Result<()> {
        Ok(())
    }

    fn validation(&mut self, report: &ValidationReport) -> setrank::Result<()> {
        if report.is_best {
            self.best = Some(*report);
        }
        let Run { fold, seed } = self.run;
        self.bar.set_message(format!("fold {} seed {seed}: epoch {}", fold.number, report.epoch));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use super::*;

    #[test]
    fn only_a_panic_sets_the_flag() {
        let failed = AtomicBool::new(false);
        drop(FailOnPanic(&failed));
        assert!(!failed.load(Ordering::Relaxed));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let run = || {
            let _guard = FailOnPanic(&failed);
            std::panic::resume_unwind(Box::new(()));
        };
        assert!(std::panic::catch_unwind(AssertUnwindSafe(|| pool.install(run))).is_err());
        assert!(failed.load(Ordering::Relaxed));
    }
}
