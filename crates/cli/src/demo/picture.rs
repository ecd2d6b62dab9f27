//! The last table of a demonstration as an SVG picture, for documentation.
//!
//! Promises: shows the text of the terminal with its colours, in the reader's light or dark theme;
//! needs no special font.
//!
//! Never: draws anything that was not on the screen.

/// Width of a character and height of a line, in pixels: those of common monospace fonts at 13 px.
const WIDTH: f64 = 7.83;
const HEIGHT: usize = 20;
const MARGIN: usize = 16;

/// Colours by theme, those of the dashboard: text, mute, ok, stop, wait; background and line.
const STYLE: &str = "\
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;fill:#16181c}\
.b{font-weight:600}.m{fill:#5f6673}.o{fill:#14795a}.s{fill:#c2372b}.w{fill:#9a6700}\
.p{fill:#fff;stroke:#e3e4e0}\
@media(prefers-color-scheme:dark){text{fill:#e8eaed}.m{fill:#9aa3af}.o{fill:#3fb68b}.s{fill:#f2705e}\
.w{fill:#f5b83d}.p{fill:#15181d;stroke:#262b33}}";

/// Lines of a terminal, with their colours, as an SVG.
pub(super) fn svg(text: &str) -> String {
    let lines: Vec<Vec<(&str, &str)>> = text.lines().map(parts).collect();
    let longest = lines.iter().map(|line| {
        let lengths = line.iter().map(|(_, text)| text.chars().count());
        lengths.sum::<usize>()
    });
    let longest = u32::try_from(longest.max().unwrap_or(0)).unwrap_or(0);
    let width = (f64::from(longest) * WIDTH).ceil() + 2.0 * MARGIN as f64;
    let height = lines.len() * HEIGHT + 2 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"The end of tollgate demo\">\n<style>{STYLE}</style>\n\
         <rect class=\"p\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n",
        width - 1.0,
        height - 1
    );
    for (number, line) in lines.iter().enumerate() {
        let y = MARGIN + number * HEIGHT + 14;
        svg.push_str(&format!(
            "<text x=\"{MARGIN}\" y=\"{y}\" xml:space=\"preserve\">"
        ));
        for (class, text) in line {
            let text = text.replace('&', "&amp;").replace('<', "&lt;");
            match *class {
                "" => svg.push_str(&text),
                class => svg.push_str(&format!("<tspan class=\"{class}\">{text}</tspan>")),
            }
        }
        svg.push_str("</text>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

/// The pieces of one line and the class of each.
fn parts(line: &str) -> Vec<(&str, &str)> {
    let mut pieces = line.split('\x1b');
    let first = pieces.next().unwrap_or_default();
    let mut parts = vec![("", first)];
    for piece in pieces {
        let (code, text) = piece.split_once('m').unwrap_or(("", piece));
        let class = match code.trim_start_matches('[') {
            "1" => "b",
            "2" => "m",
            "31" => "s",
            "32" => "o",
            "33" => "w",
            _ => "",
        };
        parts.push((class, text));
    }
    parts.retain(|(_, text)| !text.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_every_line_in_its_colours() {
        let svg = svg("plain \x1b[32m✓\x1b[0m 1 < 2\n\x1b[1mbold\x1b[0m\n");
        assert!(svg.contains(">plain <tspan class=\"o\">✓</tspan> 1 &lt; 2</text>"));
        assert!(svg.contains("<tspan class=\"b\">bold</tspan>"));
        assert_eq!(svg.matches("<text").count(), 2);
        assert!(!svg.contains('\x1b'));
    }
}
