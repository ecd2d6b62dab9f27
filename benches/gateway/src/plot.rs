//! A bar chart as SVG, small enough to be read in a diff.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plot {
    /// Its file, without `.svg`.
    pub file: String,
    pub title: String,
    pub bars: Vec<(String, f64)>,
}

/// Pixels.
const LINE: usize = 24;
const LEFT: usize = 170;
const WIDTH: usize = 420;

impl Plot {
    pub fn new(file: &str, title: &str, bars: Vec<(String, f64)>) -> Plot {
        Plot {
            file: file.to_owned(),
            title: title.to_owned(),
            bars,
        }
    }

    pub fn svg(&self) -> String {
        let height = (self.bars.len() + 2) * LINE;
        let most = self
            .bars
            .iter()
            .map(|bar| bar.1)
            .fold(f64::MIN_POSITIVE, f64::max);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"8\" y=\"18\" font-weight=\"bold\">{}</text>\n",
            LEFT + WIDTH + 90,
            self.title
        );
        for (index, (name, value)) in self.bars.iter().enumerate() {
            let y = (index + 1) * LINE + 6;
            let width = (value / most * WIDTH as f64).max(1.0);
            let colour = if name.starts_with("Tollgate") {
                "#1f6f54"
            } else {
                "#9aa5b1"
            };
            let _fits = write!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>\n\
                 <rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.0}\" height=\"16\" fill=\"{colour}\"/>\n\
                 <text x=\"{:.0}\" y=\"{}\">{}</text>\n",
                LEFT - 8,
                y + 13,
                LEFT as f64 + width + 6.0,
                y + 13,
                short(*value)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn short(value: f64) -> String {
    if value >= 1_000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}
