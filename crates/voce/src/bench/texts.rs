//! The texts that are timed, and a text of a given number of tokens.

use super::args::TextSize;

/// A text with its name.
pub(super) struct Text {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
}

impl Text {
    /// Words in it.
    pub(super) fn words(&self) -> usize {
        self.text.split_whitespace().count()
    }
}

const SHORT: &str = "The kettle is warm, the window is open, the morning smells of rain.";

const MEDIUM: &str = "When the ferry left the harbour the town came down to the stone wall to watch. \
Children counted the gulls, old men argued about the wind, and somebody played a slow song on an accordion. \
By the time the lights came on across the bay, nobody could remember why they had gathered there.";

const LONG: &str = "My grandmother kept a small shop at the corner of two narrow streets, and in it she sold thread, \
buttons, candles and advice. People came for the first three and stayed for the last. She never wrote anything \
down, yet she knew who had paid and who would pay after the harvest. In winter the stove made the windows cloudy, \
and we drew maps of countries that did not exist. She would look at them a while, nod, and ask how one \
could travel there. Years later I understood that it was not a joke. She wanted to know the way, and she believed \
that a child with a clear answer was worth listening to.";

/// The texts of a size.
pub(super) fn texts(size: TextSize) -> Vec<Text> {
    let all = [
        (TextSize::Short, Text { name: "short", text: SHORT }),
        (TextSize::Medium, Text { name: "medium", text: MEDIUM }),
        (TextSize::Long, Text { name: "long", text: LONG }),
    ];
    all.into_iter().filter(|(s, _)| size == TextSize::All || *s == size).map(|(_, t)| t).collect()
}

const WORDS: [&str; 24] = [
    "the", "small", "boat", "went", "over", "a", "cold", "lake", "and", "came", "home", "with", "seven",
    "fish", "in", "an", "old", "net", "that", "my", "uncle", "had", "made", "I",
];

/// A sentence of exactly `tokens` tokens, or as near to it as the tokeniser allows.
pub(super) fn of_tokens(count: impl Fn(&str) -> usize, tokens: usize) -> String {
    let mut sentence = String::from("Today");
    let mut next = WORDS.iter().cycle();
    loop {
        // Any word that completes the sentence will do; else the next one that leaves room.
        let complete = |word: &&&str| count(&format!("{sentence} {word}.")) == tokens;
        if let Some(word) = WORDS.iter().find(complete) {
            return format!("{sentence} {word}.");
        }
        let Some(word) = next.next() else { break };
        let longer = format!("{sentence} {word}");
        if count(&format!("{longer}.")) >= tokens {
            break;
        }
        sentence = longer;
    }
    // Commas are a token each with every tokeniser here.
    while count(&format!("{sentence}.")) < tokens {
        sentence.push(',');
    }
    sentence + "."
}

#[cfg(test)]
mod tests {
    use voce_text::Tokenizer;

    use super::*;

    #[test]
    fn texts_have_the_stated_words() {
        let words: Vec<_> = texts(TextSize::All).iter().map(Text::words).collect();
        assert_eq!(words, [13, 53, 115]);
        assert_eq!(texts(TextSize::Medium)[0].name, "medium");
    }

    #[test]
    fn a_text_of_a_number_of_tokens() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../voce-models/tests/fixtures/pocket/lsd/tokenizer.json");
        let tokenizer = Tokenizer::from_file(path).unwrap();
        for tokens in [12, 24, 50] {
            let text = of_tokens(|text| tokenizer.encode(text).len(), tokens);
            assert_eq!(tokenizer.encode(&text).len(), tokens, "{text}");
        }
    }
}
