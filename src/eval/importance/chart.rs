//! Bars of the most important features, as an SVG picture.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Importance;
use crate::eval::Summary;
use crate::eval::report::figure;
use crate::files::write_atomically;
use crate::{Error, Result};

/// Features shown at most: the others weigh less than any of these.
const SHOWN: usize = 30;
const WIDTH: i32 = 960;
const ROW: i32 = 26;
/// Above the first and below the last bar.
const MARGIN: i32 = 64;
/// Left of the bars, for names; and right of them.
const NAMES: i32 = 220;
const RIGHT: i32 = 90;
const WITHIN: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const ACROSS: RGBColor = RGBColor(0xb5, 0xcf, 0xe5);
const TEXT: RGBColor = RGBColor(0x33, 0x33, 0x33);

/// Writes a bar for each of the first 30 of `importances` to `path`: the drop of `metric` within sets with its standard
/// error, and behind it the drop across sets. `names` are those of the features, in the same order.
pub fn write_svg(path: &Path, importances: &[Importance], names: &[String], metric: &str) -> Result<()> {
    let mut svg = String::new();
    draw(&mut svg, importances, names, metric)
        .map_err(|e| Error::io("write", path, std::io::Error::other(e.to_string())))?;
    write_atomically(path, |out| out.write_all(svg.as_bytes()))
}

fn draw(
    svg: &mut String,
    importances: &[Importance],
    names: &[String],
    metric: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let shown = &importances[..importances.len().min(SHOWN)];
    let height = 2 * MARGIN + ROW * shown.len() as i32;
    let root = SVGBackend::with_string(svg, (WIDTH as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let ends = |s: &Summary| [s.mean - s.std_error, s.mean, s.mean + s.std_error];
    let all = || shown.iter().flat_map(|i| [ends(&i.within_set), ends(&i.across_sets)]).flatten();
    let finite = || all().filter(|value| value.is_finite());
    let (low, high) = (finite().fold(0.0, f64::min), finite().fold(0.0, f64::max));
    let scale = f64::from(WIDTH - NAMES - RIGHT) / (high - low).max(1e-9);
    let x = |value: f64| NAMES + ((value.clamp(low, high) - low) * scale).round() as i32;
    let style = |size: i32, side: HPos| {
        ("sans-serif", size).into_font().color(&TEXT).pos(Pos::new(side, VPos::Center))
    };
    let title = format!("Drop of {metric} without the feature: within sets (dark), across sets (light)");
    root.draw(&Text::new(title, (WIDTH / 2, MARGIN / 2), style(18, HPos::Center)))?;
    for (number, (importance, name)) in shown.iter().zip(names).enumerate() {
        let y = MARGIN + ROW * number as i32;
        let bar = |summary: &Summary, color: RGBColor, inset: i32| {
            let ends = [(x(0.0), y + inset), (x(finite_or_zero(summary.mean)), y + ROW - inset)];
            root.draw(&Rectangle::new(ends, color.filled()))
        };
        bar(&importance.across_sets, ACROSS, 3)?;
        bar(&importance.within_set, WITHIN, 8)?;
        let Summary { mean, std_error, .. } = importance.within_set;
        let (middle, error) = (y + ROW / 2, finite_or_zero(std_error));
        let mean = finite_or_zero(mean);
        let whisker = vec![(x(mean - error), middle), (x(mean + error), middle)];
        root.draw(&PathElement::new(whisker, TEXT.stroke_width(1)))?;
        root.draw(&Text::new(name.clone(), (NAMES - 10, middle), style(13, HPos::Right)))?;
        root.draw(&Text::new(figure(mean, 0), (WIDTH - 10, middle), style(13, HPos::Right)))?;
    }
    let axis = vec![(x(0.0), MARGIN - 4), (x(0.0), height - MARGIN + 4)];
    root.draw(&PathElement::new(axis, TEXT.stroke_width(1)))?;
    root.present()?;
    Ok(())
}

fn finite_or_zero(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(feature: u32, mean: f64) -> Importance {
        let summary = Summary { mean, std_error: 0.01, queries: 10 };
        Importance { feature, within_set: summary, across_sets: summary }
    }

    #[test]
    fn names_and_values_are_there_and_anything_can_be_drawn() {
        let names: Vec<String> = ["title <b>", "url"].map(str::to_owned).to_vec();
        let mut svg = String::new();
        draw(&mut svg, &[of(1, 0.25), of(2, -0.01)], &names, "ndcg@10").unwrap();
        for text in ["title &lt;b&gt;", "url", "0.2500", "-0.0100", "Drop of ndcg@10"] {
            assert!(svg.contains(text), "{text}");
        }
        for importances in [vec![], vec![of(1, f64::NAN)], (0..99).map(|f| of(f, 0.0)).collect()] {
            let names = vec![String::new(); importances.len()];
            let mut svg = String::new();
            draw(&mut svg, &importances, &names, "map").unwrap();
            assert!(svg.ends_with("</svg>\n"));
        }
    }
}
