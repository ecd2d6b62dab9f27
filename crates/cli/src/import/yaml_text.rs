//! Texts as YAML reads them back.
//!
//! Promises: every text comes back as it was, whatever its characters.
//!
//! Never: writes a character that YAML does not allow in a file.

/// Words that are no text in some version of YAML.
const WORDS: [&str; 9] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];

/// A name of letters, digits, `-` and `_` as a key: in quotes if YAML would read something else.
pub(super) fn name_text(name: &str) -> String {
    let starts_plain = name.starts_with(|letter: char| letter.is_ascii_alphabetic());
    let is_word = WORDS.iter().any(|word| name.eq_ignore_ascii_case(word));
    if starts_plain && !is_word {
        return name.to_owned();
    }
    quoted(name)
}

/// A text in double quotes.
pub(super) fn quoted(text: &str) -> String {
    // JSON escapes quotes, backslashes and the controls of ASCII as YAML does.
    let json = serde_json::Value::from(text).to_string();
    let mut quoted = String::with_capacity(json.len());
    for letter in json.chars() {
        match u32::from(letter) {
            _ if is_printable(letter) => quoted.push(letter),
            code @ ..=0xFFFF => quoted.push_str(&format!("\\u{code:04X}")),
            code => quoted.push_str(&format!("\\U{code:08X}")),
        }
    }
    quoted
}

/// Whether a character may stand in a file, within a line.
pub(super) fn is_printable(letter: char) -> bool {
    let is_break = matches!(letter, '\u{2028}' | '\u{2029}');
    // The mark of byte order, and characters that Unicode has not.
    let is_none = letter == '\u{FEFF}' || u32::from(letter) & 0xFFFE == 0xFFFE;
    !letter.is_control() && !is_break && !is_none
}
