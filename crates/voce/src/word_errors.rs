//! How many words of a text were heard wrong.

use voce_text::normalize_english;

/// Words as they are compared: numbers read out, lower case, letters, digits and apostrophes.
pub(crate) fn words(text: &str) -> Vec<String> {
    let text = normalize_english(text).to_lowercase().replace('\u{2019}', "'");
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '\'');
    words.map(|w| w.trim_matches('\'')).filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

/// Words put in, left out or taken for others, as few as explain the difference.
pub(crate) fn errors(said: &[String], heard: &[String]) -> usize {
    let mut above: Vec<usize> = (0..=heard.len()).collect();
    for (i, a) in said.iter().enumerate() {
        let mut diagonal = above[0];
        above[0] = i + 1;
        for (j, b) in heard.iter().enumerate() {
            let best = (diagonal + usize::from(a != b)).min(above[j] + 1).min(above[j + 1] + 1);
            diagonal = above[j + 1];
            above[j + 1] = best;
        }
    }
    above[heard.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_compared_as_they_sound() {
        assert_eq!(
            words("Don\u{2019}t  SHOUT, 'please': 3 times!"),
            ["don't", "shout", "please", "three", "times"]
        );
        let count = |a: &str, b: &str| errors(&words(a), &words(b));
        assert_eq!(count("the cat sat", "The cat sat."), 0);
        assert_eq!(count("the cat sat", "a cat sat down"), 2);
        assert_eq!(count("the cat sat", ""), 3);
        assert_eq!(count("", "the cat"), 2);
        assert_eq!(count("one two three four", "two three four five"), 2);
    }
}
