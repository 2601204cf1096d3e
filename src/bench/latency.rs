//! How long one query takes, from its features in memory to its scores there.

use std::fmt;
use std::time::Instant;

use serde::Serialize;

use super::machine;
use super::plan::{Mode, Plan};
use super::report::median;
use super::trial::batch;
use crate::config::Encoder;
use crate::model::scorer;
use crate::ops::simd::level;
use crate::{Error, Result};

/// Documents of the queries.
const SIZES: [usize; 3] = [10, 100, 500];

/// Latency of queries of one size.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Documents of a query.
    pub docs: usize,
    /// Queries that were timed, one after the other.
    pub queries: usize,
    /// Median of their seconds.
    pub p50_s: f64,
    /// Seconds within which 99 of 100 were done.
    pub p99_s: f64,
    /// Seconds of the fastest and of the slowest.
    pub min_s: f64,
    /// See `min_s`.
    pub max_s: f64,
    /// Medians of each round, in order.
    pub rounds_s: Vec<f64>,
    /// How far they are apart, as a share of `p50_s`.
    pub spread: f64,
}

impl Latency {
    /// Of the seconds of each round's queries.
    fn of(docs: usize, rounds: &[Vec<f64>]) -> Self {
        let sorted = |mut seconds: Vec<f64>| {
            seconds.sort_unstable_by(f64::total_cmp);
            seconds
        };
        let all = sorted(rounds.concat());
        let rounds_s: Vec<f64> = rounds.iter().map(|round| median(&sorted(round.clone()))).collect();
        let most = rounds_s.iter().copied().fold(0.0, f64::max);
        let least = rounds_s.iter().copied().fold(f64::INFINITY, f64::min);
        let p50_s = median(&all);
        Latency {
            docs,
            queries: all.len(),
            p50_s,
            p99_s: all[(99 * all.len()).div_ceil(100) - 1],
            min_s: all[0],
            max_s: all[all.len() - 1],
            spread: (most - least) / p50_s,
            rounds_s,
        }
    }
}

/// Latencies of one model on one device.
#[derive(Clone, Debug, Serialize)]
pub struct Latencies {
    /// Kind of block.
    pub encoder: Encoder,
    /// `cpu` or `gpu`.
    pub device: &'static str,
    /// Threads of the pool.
    pub threads: usize,
    /// The processor.
    pub cpu: String,
    /// Its widest vector instructions.
    pub isa: &'static str,
    /// By documents, ascending.
    pub latencies: Vec<Latency>,
}

impl Latencies {
    /// Scores single queries of 10, 100 and 500 documents by the model of `plan` on its device, as `setrank rank` would: from
    /// features in the host's memory to scores there. In each of `rounds` rounds the plan's steps of every size.
    ///
    /// # Errors
    /// As [`Plan::run`]; where `rounds` is 0, or the plan trains.
    pub fn measure(plan: &Plan, rounds: usize) -> Result<Self> {
        if rounds == 0 {
            return Err(Error::config("rounds is 0: it must be at least 1"));
        }
        if plan.mode == Mode::Train {
            return Err(Error::config("a latency is that of scoring: training has none"));
        }
        let largest = Plan { sizes: vec![SIZES[SIZES.len() - 1]], ..plan.clone() };
        let model = largest.model()?;
        let parameters = model.layout().init(plan.seed);
        let mut scorer = scorer::on(plan.device, &model, &parameters)?;
        let queries = SIZES.map(|size| batch(&Plan { sizes: vec![size], ..plan.clone() }));
        let mut found = SIZES.map(|_| Vec::with_capacity(rounds));
        for _ in 0..rounds {
            for (query, found) in queries.iter().zip(&mut found) {
                let mut seconds = Vec::with_capacity(plan.steps);
                for number in 0..plan.warmup + plan.steps {
                    let started = Instant::now();
                    scorer.begin(query)?;
                    let scores = scorer.finish()?;
                    let elapsed = started.elapsed().as_secs_f64();
                    if !scores.iter().all(|score| score.is_finite()) {
                        return Err(Error::NonFinite("a score is not finite; try another --seed".into()));
                    }
                    if number >= plan.warmup {
                        seconds.push(elapsed);
                    }
                }
                found.push(seconds);
            }
        }
        Ok(Latencies {
            encoder: plan.config.encoder,
            device: if plan.device.is_gpu() { "gpu" } else { "cpu" },
            threads: rayon::current_num_threads(),
            cpu: machine::cpu_name(),
            isa: level().name(),
            latencies: SIZES.iter().zip(&found).map(|(&size, rounds)| Latency::of(size, rounds)).collect(),
        })
    }
}

impl fmt::Display for Latencies {
    /// A table for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latencies { encoder, device, threads, cpu, isa, latencies } = self;
        writeln!(
            f,
            "{}, one query at a time, on the {device}; {cpu} ({isa}), {threads} thread(s)",
            encoder.name()
        )?;
        writeln!(f)?;
        writeln!(f, "documents   p50, ms   p99, ms   min, ms   max, ms  queries  rounds apart")?;
        for latency in latencies {
            let [p50, p99, min, max] =
                [latency.p50_s, latency.p99_s, latency.min_s, latency.max_s].map(|seconds| 1e3 * seconds);
            writeln!(
                f,
                "{:>9} {p50:>9.3} {p99:>9.3} {min:>9.3} {max:>9.3} {:>8} {:>11.1} %",
                latency.docs,
                latency.queries,
                100.0 * latency.spread
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_rounds() {
        let rounds: Vec<Vec<f64>> =
            (0..2).map(|round| (1..=100).map(|i| f64::from(i + 100 * round)).collect()).collect();
        let latency = Latency::of(10, &rounds);
        assert_eq!((latency.queries, latency.p50_s, latency.p99_s), (200, 100.5, 198.0));
        assert_eq!((latency.min_s, latency.max_s, &latency.rounds_s[..]), (1.0, 200.0, &[50.5, 150.5][..]));
        assert!((latency.spread - 100.0 / 100.5).abs() < 1e-12);
        let one = Latency::of(10, &[vec![3.0]]);
        assert_eq!((one.p50_s, one.p99_s, one.spread), (3.0, 3.0, 0.0));
    }
}
