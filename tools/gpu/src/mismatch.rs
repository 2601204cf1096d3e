//! Results that are wrong: which, in what pattern, and both outputs.

use serde_json::{Value, json};

/// Wrong places that are told one by one.
const TOLD: usize = 64;

/// Values of both outputs that are told at most, round the first wrong place: a full-size step's parameters are 130 MB.
const WHOLE: usize = 1 << 16;

/// An output that is wrong somewhere.
pub struct Mismatch {
    /// Which output, of which kernel and sizes.
    pub what: String,
    /// Seed of the inputs, where they are random.
    pub seed: Option<u64>,
    /// Where it is wrong.
    pub places: Vec<usize>,
    /// What was found, value by value.
    pub found: Vec<String>,
    /// What is right.
    pub expected: Vec<String>,
}

impl Mismatch {
    /// For the report.
    pub fn to_json(&self) -> Value {
        let value = |values: &[String], at: usize| values.get(at).cloned();
        let wrong = self.places.first().copied().unwrap_or(0);
        let begin = wrong.saturating_sub(WHOLE / 2).min(self.expected.len().saturating_sub(WHOLE));
        let around =
            |values: &[String]| -> Vec<String> { values.iter().skip(begin).take(WHOLE).cloned().collect() };
        let first = self.places.iter().take(TOLD).map(
            |&at| json!({ "at": at, "found": value(&self.found, at), "expected": value(&self.expected, at) }),
        );
        json!({
            "what": self.what,
            "seed": self.seed,
            "wrong": self.places.len(),
            "of": self.expected.len(),
            "first": first.collect::<Vec<_>>(),
            "wrong_by_index_mod_8": remainders(&self.places, 8),
            "wrong_by_index_mod_16": remainders(&self.places, 16),
            "outputs": { "begin": begin, "found": around(&self.found), "expected": around(&self.expected) },
        })
    }
}

/// How many places have each remainder: a lane, a fragment or a tile that is wrong shows here.
fn remainders(places: &[usize], divisor: usize) -> Vec<usize> {
    let mut counts = vec![0; divisor];
    places.iter().for_each(|place| counts[place % divisor] += 1);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_of_wrong_places_is_told() {
        let words = |count: usize| (0..count).map(|at| at.to_string()).collect::<Vec<_>>();
        let places: Vec<usize> = (3..1000).step_by(8).collect();
        let mismatch =
            Mismatch { what: "y".into(), seed: Some(1), places, found: words(999), expected: words(1000) };
        let report = mismatch.to_json();
        assert_eq!(report["wrong"], 125);
        assert_eq!(report["wrong_by_index_mod_8"], json!([0, 0, 0, 125, 0, 0, 0, 0]));
        assert_eq!(report["wrong_by_index_mod_16"][11], 62);
        assert_eq!(report["first"].as_array().unwrap().len(), TOLD);
        assert_eq!(report["first"][1], json!({ "at": 11, "found": "11", "expected": "11" }));
        let outputs = &report["outputs"];
        let sizes = ["found", "expected"].map(|which| outputs[which].as_array().unwrap().len());
        assert_eq!((&outputs["begin"], sizes), (&json!(0), [999, 1000]));
    }

    #[test]
    fn of_long_outputs_what_is_round_the_first_wrong_place_is_told() {
        let words: Vec<String> = (0..3 * WHOLE).map(|at| at.to_string()).collect();
        for (wrong, begin) in [(5, 0), (WHOLE, WHOLE / 2), (3 * WHOLE - 1, 2 * WHOLE)] {
            let (found, expected) = (words.clone(), words.clone());
            let mismatch = Mismatch { what: "y".into(), seed: None, places: vec![wrong], found, expected };
            let outputs = &mismatch.to_json()["outputs"];
            assert_eq!(outputs["begin"], begin);
            for which in ["found", "expected"] {
                let told = outputs[which].as_array().unwrap();
                assert_eq!((told.len(), &told[wrong - begin]), (WHOLE, &json!(wrong.to_string())));
            }
        }
    }
}
