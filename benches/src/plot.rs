//! A plot of measured numbers.

use crate::Failure;
use plotters::prelude::*;

/// Lines over logarithmic axes.
#[derive(Clone, Debug)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// What the axes are, with units.
    pub axes: [&'static str; 2],
    /// Name and points of each line.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

impl Plot {
    /// As SVG.
    pub(crate) fn svg(&self) -> Result<String, Failure> {
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let reach = |numbers: &mut dyn Iterator<Item = f64>| {
            let ends = (f64::INFINITY, 0.0_f64);
            let (low, high) = numbers.fold(ends, |ends, n| (ends.0.min(n), ends.1.max(n)));
            low * 0.8..high * 1.25
        };
        if !points().all(|(x, y)| *x > 0.0 && *y > 0.0) || points().count() == 0 {
            return Err(format!("{}: a logarithmic axis begins above 0", self.title).into());
        }
        let xs = reach(&mut points().map(|point| point.0));
        let ys = reach(&mut points().map(|point| point.1));
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, (800, 500)).into_drawing_area();
            area.fill(&WHITE)?;
            let mut chart = ChartBuilder::on(&area)
                .caption(&self.title, ("sans-serif", 18))
                .margin(12)
                .x_label_area_size(40)
                .y_label_area_size(70)
                .build_cartesian_2d(xs.log_scale().base(2.0), ys.log_scale())?;
            chart
                .configure_mesh()
                .x_desc(self.axes[0])
                .y_desc(self.axes[1])
                .light_line_style(TRANSPARENT)
                .x_label_formatter(&|x| x.round().to_string())
                .draw()?;
            for (number, (name, points)) in self.lines.iter().enumerate() {
                let color = Palette99::pick(number).to_rgba();
                chart
                    .draw_series(
                        LineSeries::new(points.clone(), color.stroke_width(2)).point_size(3),
                    )?
                    .label(name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
            }
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::LowerRight)
                .background_style(WHITE.mix(0.7))
                .border_style(BLACK)
                .draw()?;
            area.present()?;
        }
        Ok(svg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_its_title_and_its_lines() -> Result<(), Failure> {
        let plot = Plot {
            title: "growth".to_owned(),
            axes: ["ranks", "ns"],
            lines: vec![("table".to_owned(), vec![(2.0, 150.0), (64.0, 9e6)])],
        };
        let svg = plot.svg()?;
        assert!(svg.contains("growth") && svg.contains("table") && svg.ends_with("</svg>\n"));
        let none = Plot {
            lines: Vec::new(),
            ..plot
        };
        assert!(none.svg().is_err());
        Ok(())
    }
}
