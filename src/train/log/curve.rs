//! The learning curve as an SVG picture.

use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::files::write_atomically;
use crate::{Error, Result};

const SIZE: (u32, u32) = (960, 540);
const LOSS: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const METRIC: RGBColor = RGBColor(0xd9, 0x5f, 0x02);
const TEXT: RGBColor = RGBColor(0x33, 0x33, 0x33);
const GRID: RGBColor = RGBColor(0xe6, 0xe6, 0xe6);

/// Points of a curve: neighbours beyond are averaged, since a picture shows no more.
const MAX_POINTS: usize = 400;

/// The training loss and a validation metric of a run, each as (step, value) in the order of the steps.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    /// Heading of the picture.
    pub title: String,
    /// Training loss.
    pub loss: Vec<(u64, f64)>,
    /// Name of the validation metric, as the legend shows it.
    pub metric_name: String,
    /// Validation metric; its largest value is marked.
    pub metric: Vec<(u64, f64)>,
}

impl Curve {
    /// Writes the picture to `path`. Values that are not finite are left out.
    pub fn write_svg(&self, path: &Path) -> Result<()> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|e| Error::io("write", path, std::io::Error::other(e.to_string())))?;
        write_atomically(path, |out| out.write_all(svg.as_bytes()))
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let (loss, metric) = (thinned(&self.loss), finite(&self.metric).collect::<Vec<_>>());
        let last = self.loss.iter().chain(&self.metric).map(|&(step, _)| step).max().unwrap_or(0).max(1);
        let (loss_range, metric_range) = (padded(&loss), padded(&metric));
        let (loss_decimals, metric_decimals) = (decimals(&loss_range), decimals(&metric_range));
        let font = |size: f64, color: RGBColor| ("sans-serif", size).into_font().color(&color);

        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, font(20.0, TEXT))
            .margin(14)
            .x_label_area_size(46)
            .y_label_area_size(72)
            .right_y_label_area_size(72)
            .build_cartesian_2d(0.0..last as f64, loss_range)?
            .set_secondary_coord(0.0..last as f64, metric_range);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(TEXT.mix(0.5))
            .x_labels(8)
            .y_labels(7)
            .x_desc("Training step")
            .y_desc("Training loss")
            .x_label_formatter(&|step| grouped(*step as u64))
            .y_label_formatter(&|value| format!("{value:.loss_decimals$}"))
            .label_style(font(13.0, TEXT))
            .axis_desc_style(font(15.0, TEXT))
            .draw()?;
        chart
            .configure_secondary_axes()
            .axis_style(TEXT.mix(0.5))
            .y_labels(7)
            .y_desc(format!("Validation {}", self.metric_name))
            .y_label_formatter(&|value| format!("{value:.metric_decimals$}"))
            .label_style(font(13.0, TEXT))
            .axis_desc_style(font(15.0, TEXT))
            .draw()?;

        let key = |color: RGBColor| {
            move |(x, y)| PathElement::new(vec![(x, y), (x + 22, y)], color.stroke_width(2))
        };
        chart
            .draw_series(LineSeries::new(loss, LOSS.stroke_width(2)))?
            .label("Training loss")
            .legend(key(LOSS));
        chart
            .draw_secondary_series(LineSeries::new(metric.iter().copied(), METRIC.stroke_width(2)))?
            .label(format!("Validation {}", self.metric_name))
            .legend(key(METRIC));
        if metric.len() <= MAX_POINTS / 8 {
            chart.draw_secondary_series(metric.iter().map(|&at| Circle::new(at, 3, METRIC.filled())))?;
        }
        // The first of equal values, as the model selection takes it.
        if let Some(&best) = metric.iter().rev().max_by(|a, b| a.1.total_cmp(&b.1)) {
            let side = if best.0 > 0.8 * last as f64 { HPos::Right } else { HPos::Left };
            let style = font(13.0, METRIC).pos(Pos::new(side, VPos::Bottom));
            let label = format!("best {:.4} at step {}", best.1, grouped(best.0 as u64));
            chart.draw_secondary_series(std::iter::once(
                EmptyElement::at(best)
                    + Circle::new((0, 0), 6, METRIC.stroke_width(2))
                    + Text::new(label, (0, -10), style),
            ))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperMiddle)
            .label_font(font(14.0, TEXT))
            .legend_area_size(30)
            .margin(14)
            .background_style(WHITE.mix(0.85))
            .border_style(GRID)
            .draw()?;
        drop(chart);
        root.present()?;
        Ok(())
    }
}

fn finite(points: &[(u64, f64)]) -> impl Iterator<Item = (f64, f64)> + '_ {
    points.iter().filter(|(_, value)| value.is_finite()).map(|&(step, value)| (step as f64, value))
}

/// At most [`MAX_POINTS`] means of equally many neighbours.
fn thinned(points: &[(u64, f64)]) -> Vec<(f64, f64)> {
    let points: Vec<(f64, f64)> = finite(points).collect();
    let mean = |group: &[(f64, f64)]| {
        let n = group.len() as f64;
        (group.iter().map(|p| p.0).sum::<f64>() / n, group.iter().map(|p| p.1).sum::<f64>() / n)
    };
    points.chunks(points.len().div_ceil(MAX_POINTS).max(1)).map(mean).collect()
}

/// The range of the values and a little more; [0, 1] where there is none.
fn padded(points: &[(f64, f64)]) -> Range<f64> {
    let low = points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let high = points.iter().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
    if low > high {
        return 0.0..1.0;
    }
    let pad = if low < high { 0.08 * (high - low) } else { 0.1 * low.abs().max(1e-3) };
    low - pad..high + pad
}

/// Decimals that tell the labels of an axis apart.
fn decimals(range: &Range<f64>) -> usize {
    (1.0 - (range.end - range.start).log10().floor()).clamp(0.0, 9.0) as usize
}

/// `number` with thin spaces between groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join("\u{2009}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn svg(curve: &Curve) -> String {
        let mut svg = String::new();
        curve.draw(&mut svg).unwrap();
        svg
    }

    #[test]
    fn axes_legend_and_best_value_are_there() {
        let curve = Curve {
            title: "A & B".into(),
            loss: (1..=3000u64).map(|step| (step * 10, 2.0 + 3.0 / (1.0 + step as f64 / 100.0))).collect(),
            metric_name: "NDCG@10".into(),
            metric: (1..=10u64).map(|epoch| (epoch * 3000, 0.5 - 0.2 / epoch as f64)).collect(),
        };
        let svg = svg(&curve);
        let best = "best 0.4800 at step 30\u{2009}000";
        for text in ["Training step", "Training loss", "Validation NDCG@10", "A &amp; B", best] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.len() < 60_000, "{}", svg.len());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("curve.svg");
        curve.write_svg(&path).unwrap();
        assert_eq!(std::fs::read_to_string(path).unwrap(), svg);
    }

    #[test]
    fn any_series_can_be_drawn() {
        for points in
            [vec![], vec![(0, 1.0)], vec![(5, 0.0); 3], vec![(1, f64::NAN), (2, 1e300), (3, -1e300)]]
        {
            let curve = Curve { loss: points.clone(), metric: points, ..Curve::default() };
            assert!(svg(&curve).ends_with("</svg>\n"));
        }
    }

    #[test]
    fn helpers() {
        assert_eq!(grouped(1_234_567), "1\u{2009}234\u{2009}567");
        assert_eq!((grouped(0), grouped(100)), ("0".into(), "100".into()));
        assert_eq!((decimals(&(0.0..0.3)), decimals(&(0.0..3.0)), decimals(&(0.0..300.0))), (2, 1, 0));
        assert_eq!(thinned(&[(1, 1.0), (2, f64::NAN), (3, 2.0)]), [(1.0, 1.0), (3.0, 2.0)]);
    }
}
