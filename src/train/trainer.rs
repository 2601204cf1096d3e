//! The training loop: shuffled epochs, batches, steps, validations; stops, saves, resumes.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::checkpoint::Checkpoint;
use super::config::{Select, TrainConfig};
use super::epoch::{BatchSize, Epoch};
use super::learner::{self, Feeding, Learner, Objective, Outcome};
use super::state::{self, Best, Progress, State, Weights};
use crate::data::Dataset;
use crate::data::batch::{Batch, Batcher, Shuffle};
use crate::eval::{Conventions, Metric, evaluate};
use crate::model::device::choose;
use crate::model::setrank::{SetRank, TrainingStep};
use crate::ops::loss::Scratch;
use crate::{Error, Result};

/// What an observer is told after each step.
#[derive(Clone, Copy, Debug)]
pub struct StepReport {
    /// Steps taken so far.
    pub step: u64,
    /// Epochs begun, from 1.
    pub epoch: u64,
    /// Mean loss of the step's sets.
    pub loss: f64,
    /// Learning rate of the step.
    pub lr: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Documents of the step.
    pub documents: usize,
}

/// What an observer is told after each validation.
#[derive(Clone, Copy, Debug)]
pub struct ValidationReport {
    /// Steps taken so far.
    pub step: u64,
    /// Epochs begun, from 1.
    pub epoch: u64,
    /// Mean loss of the training sets since the last validation.
    pub train_loss: f64,
    /// Measured on validation data, where there is any.
    pub valid: Option<Validation>,
    /// Whether this is the best model so far.
    pub is_best: bool,
}

/// A model on validation data.
#[derive(Clone, Copy, Debug)]
pub struct Validation {
    /// Mean loss of the sets.
    pub loss: f64,
    /// Mean NDCG@10, or the metric that selects.
    pub metric: f64,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// All epochs are done.
    Epochs,
    /// All steps are done.
    Steps,
    /// The model stopped getting better.
    Patience,
    /// The time is up; the run can be resumed.
    Seconds,
    /// Somebody asked; the run can be resumed.
    Interrupted,
}

/// Follows a run.
pub trait Observer {
    /// A step was taken.
    fn step(&mut self, report: &StepReport) -> Result<()>;
    /// The model was validated.
    fn validation(&mut self, report: &ValidationReport) -> Result<()>;
}

/// A training run.
pub struct Trainer<'a> {
    config: &'a TrainConfig,
    learner: Box<dyn Learner + 'a>,
    train: Batcher<'a>,
    valid: Option<Batcher<'a>>,
    steps_per_epoch: u64,
    feeding: Option<Feeding>,
    progress: Progress,
    batch: Batch,
    /// Steps whose outcome is not known yet, oldest first.
    pending: VecDeque<Pending>,
}

/// A step that the learner was told to take.
struct Pending {
    /// Steps taken with it.
    step: u64,
    /// Epochs begun, from 1.
    epoch: u64,
    lr: f64,
    documents: usize,
    /// Of all its batches.
    queries: Vec<usize>,
}

/// Steps that a learner may be behind before the trainer waits for it.
const MOST_PENDING: usize = 2;

impl<'a> Trainer<'a> {
    /// A run of `model` from `state`, on the device that `config` asks for.
    ///
    /// # Errors
    ///
    /// Data that the model cannot learn from, a state of another run, and what keeps a GPU from being used.
    pub fn new(
        config: &'a TrainConfig,
        model: SetRank,
        train: Batcher<'a>,
        valid: Option<Batcher<'a>>,
        state: State,
    ) -> Result<Self> {
        let State { weights, progress } = state;
        let weights = with_average(config, weights)?;
        let device = choose(config.asked(), model.config())?.device;
        let learner = learner::on(device, model, weights, objective(config))?;
        Self::with_learner(config, learner, train, valid, progress)
    }

    /// A run of a learner that is as far as `progress` says.
    pub fn with_learner(
        config: &'a TrainConfig,
        learner: Box<dyn Learner + 'a>,
        train: Batcher<'a>,
        valid: Option<Batcher<'a>>,
        progress: Progress,
    ) -> Result<Self> {
        for (batcher, name) in
            std::iter::once((&train, "training")).chain(valid.as_ref().map(|v| (v, "validation")))
        {
            if batcher.data().num_documents() == 0 {
                return Err(Error::data(format!("the {name} data has no document")));
            }
            let fits = batcher.check_set_sizes(config.max_set_size);
            fits.map_err(|error| Error::data(format!("the {name} data: {error}")))?;
            if !batcher.data().has_relevant() {
                return Err(Error::data(format!(
                    "the {name} data has no relevant document: no label is above 0, so there is nothing to learn \
                     from or select by (if its labels start at another number, see --label-offset)"
                )));
            }
        }
        if valid.is_none() && config.epochs == 0 && config.max_steps == 0 && config.max_seconds == 0.0 {
            return Err(Error::config(
                "nothing would end this run: patience needs validation data; give --valid, or --epochs, --max-steps \
                 or --max-seconds",
            ));
        }
        BatchSize::of(config).check(&train)?;
        let steps_of = |epoch| Epoch::new(config, &train, epoch).num_steps() as u64;
        if progress.step_in_epoch >= steps_of(progress.epoch) || !progress.loss_sum.is_finite() {
            return Err(does_not_fit());
        }
        let steps_per_epoch = steps_of(0);
        let train = train.with_augment(config.augment());
        let mut trainer = Trainer {
            config,
            learner,
            train,
            valid,
            steps_per_epoch,
            feeding: None,
            progress,
            batch: Batch::default(),
            pending: VecDeque::new(),
        };
        if let Some(valid) = &trainer.valid {
            // Labels that the metric has no value for are to be found now, not after an epoch.
            check_selection(config, valid.data())?;
        }
        let Trainer { learner, train, valid, .. } = &mut trainer;
        let largest = BatchSize::of(config).largest(train);
        trainer.feeding = learner.prepare(train, largest, valid.as_ref())?;
        Ok(trainer)
    }

    /// The conventions under which validation data is evaluated.
    pub fn conventions(&self) -> Conventions {
        conventions(self.config)
    }

    /// Where a GPU's features come from.
    pub fn feeding(&self) -> Option<Feeding> {
        self.feeding
    }

    /// Rows a document that the batches of the first epoch would have, if each were padded to its longest set: none is.
    pub fn padding(&self) -> f64 {
        Epoch::new(self.config, &self.train, 0).padding(&self.train)
    }

    /// Steps of the first epoch; others have as many, unless batches are bounded by documents.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch
    }

    /// Steps that the run takes at most, where that is known; every epoch is taken to have as many as the first.
    pub fn total_steps(&self) -> Option<u64> {
        let of_epochs =
            (self.config.epochs > 0).then(|| self.config.epochs.saturating_mul(self.steps_per_epoch));
        let of_steps = (self.config.max_steps > 0).then_some(self.config.max_steps);
        of_epochs.into_iter().chain(of_steps).min()
    }

    /// Whether there is validation data.
    pub fn validates(&self) -> bool {
        self.valid.is_some()
    }

    /// The metric that is measured on validation data.
    pub fn metric(&self) -> Metric {
        metric(self.config)
    }

    /// How far the run is.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// All weights after the last step.
    pub fn weights(&mut self) -> Result<&Weights> {
        self.learner.snapshot()
    }

    /// Steps taken.
    fn steps(&self) -> u64 {
        self.learner.steps()
    }

    /// Trains until something ends it; `folder` then holds the best model and the state. `interrupted` is looked
    /// at after every step.
    pub fn run(
        &mut self,
        folder: &Path,
        observer: &mut dyn Observer,
        interrupted: &AtomicBool,
    ) -> Result<Stop> {
        let started = Instant::now();
        let stop = loop {
            if let Some(stop) = self.finished() {
                break stop;
            }
            let epoch = Epoch::new(self.config, &self.train, self.progress.epoch);
            let mut ended = None;
            for step in self.progress.step_in_epoch as usize..epoch.num_steps() {
                let number = self.progress.epoch + 1;
                self.step(&epoch.step(step))?;
                self.settle(MOST_PENDING, observer)?;
                let epoch_done = step + 1 == epoch.num_steps();
                let validate = match self.config.valid_every {
                    0 => epoch_done,
                    every => self.steps().is_multiple_of(every),
                };
                if epoch_done {
                    self.progress.epoch += 1;
                    self.progress.step_in_epoch = 0;
                }
                if validate {
                    self.settle(0, observer)?;
                    self.validate(number, folder, observer)?;
                }
                ended = self.finished().or_else(|| {
                    let time_is_up = self.config.max_seconds > 0.0
                        && started.elapsed().as_secs_f64() >= self.config.max_seconds;
                    if interrupted.load(Ordering::Relaxed) {
                        Some(Stop::Interrupted)
                    } else {
                        time_is_up.then_some(Stop::Seconds)
                    }
                });
                if ended.is_some() || epoch_done {
                    break;
                }
            }
            if let Some(stop) = ended {
                break stop;
            }
        };
        self.settle(0, observer)?;
        // Where nothing has been selected the last model is kept.
        if self.progress.best.is_none() || self.valid.is_none() {
            self.save_model(folder)?;
        }
        if self.progress.best.is_none()
            && let (true, Stop::Epochs | Stop::Steps) = (self.validates(), stop)
        {
            // Told, but not kept in the state: a run that goes on is to be as if it had never stopped.
            let valid = self.checked_validation()?;
            let progress = &self.progress;
            observer.validation(&ValidationReport {
                step: progress.step,
                epoch: progress.epoch + u64::from(progress.step_in_epoch > 0),
                train_loss: progress.loss_sum / progress.loss_sets.max(1) as f64,
                valid,
                is_best: true,
            })?;
        }
        self.save_state(folder)?;
        Ok(stop)
    }

    fn finished(&self) -> Option<Stop> {
        let progress = &self.progress;
        if self.config.epochs > 0 && progress.epoch >= self.config.epochs {
            Some(Stop::Epochs)
        } else if self.config.max_steps > 0 && self.steps() >= self.config.max_steps {
            Some(Stop::Steps)
        } else if self.config.patience > 0 && progress.validations_since_best >= self.config.patience {
            Some(Stop::Patience)
        } else {
            None
        }
    }

    /// Has the learner take one step on the mean loss of the queries of `batches`, whose gradients are added up.
    fn step(&mut self, batches: &[&[usize]]) -> Result<()> {
        let (step, epoch) = (self.steps(), self.progress.epoch);
        let sets = batches.iter().map(|batch| batch.len()).sum();
        let mut documents = 0;
        self.learner.begin()?;
        for (part, queries) in batches.iter().enumerate() {
            let shuffle = Shuffle { seed: self.config.seed, epoch };
            if self.learner.needs_features() {
                self.train.fill(&mut self.batch, queries, Some(shuffle));
            } else {
                self.train.fill_without_features(&mut self.batch, queries, Some(shuffle));
            }
            documents += self.batch.rows.len();
            // Every batch of a step draws its own dropout.
            let number = step.wrapping_mul(self.config.accumulate as u64).wrapping_add(part as u64);
            let training = TrainingStep { seed: self.config.seed, step: number };
            self.learner.accumulate(&self.batch, sets, training)?;
        }
        let total = self.total_steps().unwrap_or(u64::MAX);
        let lr = self.config.lr * self.config.schedule.factor(step, self.config.warmup_steps, total);
        self.learner.finish(lr)?;
        self.progress.step = step + 1;
        self.progress.step_in_epoch += 1;
        let queries = batches.concat();
        self.pending.push_back(Pending { step: step + 1, epoch: epoch + 1, lr, documents, queries });
        Ok(())
    }

    /// Tells `observer` what came of steps; afterwards at most `most` are pending.
    fn settle(&mut self, most: usize, observer: &mut dyn Observer) -> Result<()> {
        while let Some(step) = self.pending.front() {
            let Some(outcome) = self.learner.outcome(self.pending.len() > most)? else { break };
            let report = match self.report(step, &outcome) {
                Err(Error::NonFinite(what)) => {
                    let more = self.weights_that_are_not_finite().unwrap_or_default();
                    return Err(Error::NonFinite(what + &more));
                }
                report => report?,
            };
            self.progress.loss_sum += outcome.losses.iter().sum::<f64>();
            self.progress.loss_sets += step.queries.len() as u64;
            self.pending.pop_front();
            observer.step(&report)?;
        }
        Ok(())
    }

    /// The first parameter that holds an infinity or a NaN, where one does, as the rest of a message.
    fn weights_that_are_not_finite(&mut self) -> Result<String> {
        let parameters = self.learner.snapshot()?.parameters.clone();
        let found = self.learner.model().layout().parameters().iter().find_map(|parameter| {
            let values = &parameters[parameter.range()];
            let at = values.iter().position(|value| !value.is_finite())?;
            Some(format!("; the weights have overflown: `{}` holds {} at {at}", parameter.name, values[at]))
        });
        Ok(found.unwrap_or_default())
    }

    /// What came of a step, or why the run cannot go on from it.
    fn report(&self, pending: &Pending, outcome: &Outcome) -> Result<StepReport> {
        let Pending { step, epoch, lr, documents, queries } = pending;
        let id = |query: &usize| self.train.data().query(*query).id();
        let less_noise = less_noise(self.config);
        if let Some(set) = outcome.losses.iter().position(|loss| !loss.is_finite()) {
            return Err(Error::NonFinite(format!(
                "step {step}: the loss of query {} is {}; try a lower --lr, a smaller --clip, {less_noise}or another \
                 --normalize",
                id(&queries[set]),
                outcome.losses[set]
            )));
        }
        if !outcome.gradient_norm.is_finite() {
            let ids: Vec<&str> = queries.iter().take(3).map(id).collect();
            return Err(Error::NonFinite(format!(
                "step {step}: the gradient of queries {}, … is not finite; try a lower --lr, {less_noise}or a smaller \
                 --clip",
                ids.join(", ")
            )));
        }
        Ok(StepReport {
            step: *step,
            epoch: *epoch,
            loss: outcome.losses.iter().sum::<f64>() / queries.len() as f64,
            lr: *lr,
            gradient_norm: outcome.gradient_norm,
            documents: *documents,
        })
    }

    /// Validates, keeps the model if it is the best, and saves the state.
    fn validate(&mut self, epoch: u64, folder: &Path, observer: &mut dyn Observer) -> Result<()> {
        let valid = self.checked_validation()?;
        let step = self.steps();
        let progress = &mut self.progress;
        // Larger is better; without validation data every model replaces the last.
        let value = match (valid, self.config.select) {
            (Some(valid), Select::Metric(_)) => valid.metric,
            (Some(valid), Select::Loss) => -valid.loss,
            (None, _) => step as f64,
        };
        let is_best = progress.best.is_none_or(|best| value > best.value);
        if is_best {
            progress.best = Some(Best { value, step, epoch });
            progress.validations_since_best = 0;
        } else {
            progress.validations_since_best += 1;
        }
        let train_loss = progress.loss_sum / progress.loss_sets.max(1) as f64;
        progress.loss_sum = 0.0;
        progress.loss_sets = 0;
        if is_best {
            self.save_model(folder)?;
        }
        self.save_state(folder)?;
        observer.validation(&ValidationReport { step, epoch, train_loss, valid, is_best })
    }

    /// [`validation`](Self::validation), with advice where the model has diverged.
    fn checked_validation(&mut self) -> Result<Option<Validation>> {
        let step = self.steps();
        self.validation().map_err(|error| match error {
            Error::NonFinite(what) => Error::NonFinite(format!(
                "validation after step {step}: {what}; try a lower --lr or a smaller --clip"
            )),
            other => other,
        })
    }

    /// Loss and metric of the current model on validation data, where there is any.
    fn validation(&mut self) -> Result<Option<Validation>> {
        let Some(valid) = &self.valid else { return Ok(None) };
        let data = valid.data();
        let scores = self.learner.score(valid)?;
        let labels = data.labels().unwrap_or(&[]);
        let mut loss_sum = 0.0;
        let mut scratch = Scratch::default();
        for query in data.queries() {
            let rows = query.rows().filter(|&row| valid.kept().is_none_or(|kept| kept[row]));
            let (scores, labels): (Vec<f64>, Vec<f32>) =
                rows.map(|row| (f64::from(scores[row]), labels[row])).unzip();
            let mut gradient = vec![0.0; scores.len()];
            loss_sum += self.config.loss.of_set(&mut scratch, &scores, &labels, &mut gradient);
        }
        let metric = measure(self.config, data, &scores)?;
        Ok(Some(Validation { loss: loss_sum / valid.sets().len() as f64, metric }))
    }

    fn save_state(&mut self, folder: &Path) -> Result<()> {
        state::save(folder, self.learner.snapshot()?, &self.progress)
    }

    fn save_model(&mut self, folder: &Path) -> Result<()> {
        let mut config = self.learner.model().config().clone();
        config.training = self.record();
        let model = SetRank::new(config)?;
        let parameters = self.learner.snapshot()?.evaluated().to_vec();
        Checkpoint { model, parameters }.save(folder)
    }

    /// The record of the training in the model's configuration.
    fn record(&self) -> serde_json::Map<String, serde_json::Value> {
        let best = self.progress.best;
        let mut record = serde_json::json!({
            "setrank": env!("CARGO_PKG_VERSION"),
            "preset": self.config.preset,
            "loss": self.config.loss,
            "seed": self.config.seed,
            "queries": self.train.data().num_queries(),
            "documents": self.train.data().num_documents(),
            "init_feature": self.config.init_feature,
            "step": self.steps(),
            "epoch": best.map_or(self.progress.epoch, |best| best.epoch),
        });
        if let (Some(best), Some(_)) = (best, &self.valid) {
            let value = if self.config.select == Select::Loss { -best.value } else { best.value };
            record["valid"] = serde_json::json!({ self.config.select.to_string(): value });
        }
        match record {
            serde_json::Value::Object(record) => record,
            _ => unreachable!("an object"),
        }
    }
}

/// What a run of `config` minimises, and how.
pub fn objective(config: &TrainConfig) -> Objective {
    Objective { loss: config.loss, clip: config.clip, adam: config.adam(), ema: config.ema }
}

/// `weights` with a running average where a run of `config` keeps one: at first the parameters themselves.
pub fn with_average(config: &TrainConfig, mut weights: Weights) -> Result<Weights> {
    if config.ema > 0.0 && weights.adam.step == 0 {
        weights.average = Some(weights.parameters.clone());
    }
    if weights.average.is_some() == (config.ema > 0.0) { Ok(weights) } else { Err(does_not_fit()) }
}

fn does_not_fit() -> Error {
    Error::data("the state of the run does not fit its data: it cannot be resumed")
}

/// Refuses validation data that cannot select a model under `config`, whatever its scores.
///
/// # Errors
/// Where a label has no value in the metric, or where no query counts.
pub fn check_selection(config: &TrainConfig, valid: &Dataset) -> Result<()> {
    measure(config, valid, &vec![0.0f32; valid.num_documents()]).map(|_| ())
}

/// The metric that selects, of `scores` on validation data.
fn measure(config: &TrainConfig, valid: &Dataset, scores: &[f32]) -> Result<f64> {
    let metric = metric(config);
    let summary = evaluate(valid, scores, None, &[metric], &conventions(config))?.summary(0);
    if summary.queries == 0 {
        return Err(Error::data(format!(
            "no validation query counts for {metric}: none has a document that the metric takes as relevant"
        )));
    }
    Ok(summary.mean)
}

/// The metric that is measured on validation data.
fn metric(config: &TrainConfig) -> Metric {
    match config.select {
        Select::Metric(metric) => metric,
        Select::Loss => Metric::Ndcg(Some(10)),
    }
}

/// The conventions under which validation data is evaluated.
fn conventions(config: &TrainConfig) -> Conventions {
    Conventions { gain: config.gain, ..Conventions::default() }
}

/// Advice where a run of `config` has diverged, for those with noise.
fn less_noise(config: &TrainConfig) -> &'static str {
    if config.noise > 0.0 { "less --noise, " } else { "" }
}
