//! Lines over a logarithmic axis as an SVG picture that reads on light and on dark pages.

use plotters::coord::combinators::BindKeyPoints;
use plotters::prelude::*;

use crate::{Error, Result};

const SIZE: (u32, u32) = (800, 450);
/// Grey and colours that stand out from white as well as from black; the background is the page's.
const TEXT: RGBColor = RGBColor(0x80, 0x80, 0x80);
const LINES: [RGBColor; 4] = [
    RGBColor(0x3b, 0x8e, 0xd0),
    RGBColor(0xe0, 0x7b, 0x1a),
    RGBColor(0x3a, 0xa6, 0x55),
    RGBColor(0xb0, 0x6a, 0xc4),
];
/// Room above the highest point.
const HEADROOM: f64 = 1.12;

/// A named line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What the legend calls it.
    pub name: String,
    /// (x, y), x ascending and positive.
    pub points: Vec<(f64, f64)>,
}

/// Lines with their axes: x logarithmic, y from 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Heading.
    pub title: String,
    /// What x is.
    pub x: String,
    /// What y is.
    pub y: String,
    /// At most four.
    pub lines: Vec<Line>,
}

impl Chart {
    /// The picture. Points that are not finite, or not right of 0, are left out.
    pub fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|e| Error::data(format!("cannot draw the chart {}: {e}", self.title)))?;
        Ok(svg)
    }

    /// The lower corner where lines leave more room.
    fn legend(&self) -> SeriesLabelPosition {
        let (mut left, mut right) = (f64::INFINITY, f64::INFINITY);
        for line in &self.lines {
            if let [(_, first), ..] = line.points[..] {
                left = left.min(first);
            }
            if let [.., (_, last)] = line.points[..] {
                right = right.min(last);
            }
        }
        if left > right { SeriesLabelPosition::LowerLeft } else { SeriesLabelPosition::LowerRight }
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let points = || self.lines.iter().flat_map(|line| drawable(&line.points));
        let (left, right) = points().fold((f64::INFINITY, 0.0f64), |(l, r), (x, _)| (l.min(x), r.max(x)));
        let top = points().map(|(_, y)| y).fold(0.0, f64::max);
        // Where something was measured, which powers of ten may all miss.
        let mut places: Vec<f64> = points().map(|(x, _)| x).collect();
        places.sort_unstable_by(f64::total_cmp);
        places.dedup();
        let x_range = if left < right { left..right } else { 1.0..10.0 };
        let top = if top > 0.0 { top } else { 1.0 };
        let font = |size: f64| ("sans-serif", size).into_font().color(&TEXT);

        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, font(18.0))
            .margin(14)
            .x_label_area_size(46)
            .y_label_area_size(72)
            .build_cartesian_2d(
                LogCoord::from(x_range.log_scale()).with_key_points(places),
                0.0..top * HEADROOM,
            )?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(TEXT.mix(0.25))
            .axis_style(TEXT)
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_label_formatter(&|x| format!("{x}"))
            .y_label_formatter(&|y| if top < 10.0 { format!("{y:.2}") } else { format!("{y:.0}") })
            .label_style(font(13.0))
            .axis_desc_style(font(14.0))
            .draw()?;
        for (line, color) in self.lines.iter().zip(LINES) {
            let points: Vec<(f64, f64)> = drawable(&line.points).collect();
            chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, color.filled())))?;
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)))?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 22, y)], color.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(self.legend())
            .label_font(font(14.0))
            .legend_area_size(30)
            .margin(14)
            .border_style(TEXT.mix(0.25))
            .draw()?;
        drop(chart);
        root.present()?;
        Ok(())
    }
}

fn drawable(points: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> + '_ {
    points.iter().copied().filter(|(x, y)| *x > 0.0 && x.is_finite() && y.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_axes_and_legend_are_there() {
        let line = |name: &str, points: &[(f64, f64)]| Line { name: name.into(), points: points.to_vec() };
        let chart = Chart {
            title: "Speed & size".into(),
            x: "Documents of a set".into(),
            y: "Documents a second".into(),
            lines: vec![
                line("msab", &[(10.0, 4000.0), (100.0, 3500.0), (1000.0, 1800.0)]),
                line("imsab", &[(10.0, 2500.0), (100.0, f64::NAN), (1000.0, 3600.0)]),
            ],
        };
        let svg = chart.svg().unwrap();
        for part in ["Speed &amp; size", "Documents of a set", "Documents a second", "imsab", "polyline"] {
            assert!(svg.contains(part), "{part}");
        }
        assert_eq!(svg.matches("<circle").count(), 5);
        for place in ["\n10\n", "\n100\n", "\n1000\n"] {
            assert!(svg.contains(place), "{place:?}");
        }
        // Where msab ends lower than both begin, the legend is on the left.
        let text_at = |svg: &str, text: &str| -> f64 {
            let before = &svg[..svg.find(text).unwrap()];
            before[before.rfind(" x=\"").unwrap() + 4..].split('"').next().unwrap().parse().unwrap()
        };
        assert!(text_at(&svg, "\nmsab") < f64::from(SIZE.0) / 2.0);
        let rising = line("rising", &[(1.0, 1.0), (9.0, 2.0)]);
        let rising = Chart { lines: vec![rising], ..chart.clone() };
        let svg = rising.svg().unwrap();
        assert!(text_at(&svg, "\nrising") > f64::from(SIZE.0) / 2.0);
        assert!(svg.contains("\n9\n") && !svg.contains("\n10\n"));
        for points in [vec![], vec![(5.0, 1.0)], vec![(0.0, 1.0), (f64::INFINITY, 0.0)]] {
            let chart = Chart { lines: vec![Line { name: String::new(), points }], ..chart.clone() };
            assert!(chart.svg().unwrap().ends_with("</svg>\n"));
        }
    }
}
