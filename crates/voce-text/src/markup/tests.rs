//! A table of what is left of marked-up text, and what holds for any text however it is cut.

use super::*;
use proptest::prelude::*;

const CASES: &[(&str, &str)] = &[
    // Headings
    ("# Title", "Title."),
    ("# Title\nText here.", "Title.\nText here."),
    ("## What now?\nGo.", "What now?\nGo."),
    ("###### Deep ##\n", "Deep ##.\n"),
    ("####### Seven", "####### Seven"),
    ("#5 is alive", "#5 is alive"),
    ("#speech today", "#speech today"),
    ("C# and F#", "C# and F#"),
    ("Title\n=====\nText.", "Title.\nText."),
    ("Title\n---\nText.", "Title.\nText."),
    ("Above.\n\n---\n\nBelow.", "Above.\n\n\nBelow."),
    ("* * *\nText", "Text"),
    ("#\n", "\n"),
    ("Text\n\n#\n\n- \n", "Text\n\n\n\n\n"),
    // Emphasis
    ("This is *it*.", "This is it."),
    ("This is **very** good, ***really***.", "This is very good, really."),
    ("**Note:** mind the gap", "Note: mind the gap"),
    ("**Note:**now", "Note:now"),
    ("_soft_ and __loud__ and ___both___", "soft and loud and both"),
    ("\"*quoted*\" (*inside*)", "\"quoted\" (inside)"),
    ("~~gone~~ here", "gone here"),
    ("*Terms apply", "Terms apply"),
    ("from $5*", "from $5"),
    ("这是**重点**内容", "这是重点内容"),
    ("2 * 3 = 6 and 2*3 = 6", "2 * 3 = 6 and 2*3 = 6"),
    ("2**8 or M*A*S*H", "2**8 or M*A*S*H"),
    ("*.rs and **/*.txt and foo/*", "*.rs and **/*.txt and foo/*"),
    ("snake_case and __init__.py and _private", "snake_case and __init__.py and _private"),
    ("/usr/lib/_x_/a_b_c", "/usr/lib/_x_/a_b_c"),
    ("~/.config and ~5 and a~~b", "~/.config and ~5 and ab"),
    ("a _b c", "a _b c"),
    ("____", ""),
    // Lists
    ("- milk\n- eggs\n- bread", "milk.\neggs.\nbread."),
    ("Buy:\n\n* milk\n* eggs\n\nThen go.", "Buy:\n\nmilk.\neggs.\n\nThen go."),
    ("Buy\n- milk, and\n  honey\n- eggs!", "Buy.\nmilk, and\n  honey.\neggs!"),
    ("- milk from\n  the farm\n- eggs", "milk from\n  the farm.\neggs."),
    ("- [ ] to do\n- [x] done", "to do.\ndone."),
    ("  - nested\n    - deeper", "nested.\ndeeper."),
    ("1. First\n2. Second", "1. First.\n2. Second."),
    ("1) First\n2) Second.", "1) First.\n2) Second."),
    ("1984. That was a year.", "1984. That was a year."),
    ("• one\n• two", "one.\ntwo."),
    ("-5 degrees", "-5 degrees"),
    ("- 5 apples", "5 apples."),
    ("+ 5 apples", "+ 5 apples"),
    ("well-known - really", "well-known - really"),
    // Quotations
    ("> Said he.\n> And she.", "Said he.\nAnd she."),
    ("> a\n> b", "a\nb"),
    (">> deep", "deep"),
    ("> 10 is more", "> 10 is more"),
    (">= 10", ">= 10"),
    ("> [!NOTE]\n> Mind the gap.", "Mind the gap."),
    // Code
    ("Run `voce say` now.", "Run voce say now."),
    ("``a ` b`` c", "a ` b c"),
    ("`*not* _marked_`", "*not* _marked_"),
    ("See:\n```rust\nfn main() {}\n```\nDone.", "See:\nDone."),
    ("See:\n```\nplain *text*\n```\nDone.", "See:\nplain *text*\nDone."),
    ("Before\n~~~python\nx = 1\n~~~\nAfter", "Before.\nAfter"),
    ("````md\n```\nhi\n```\n````\nDone", "```\nhi\n```\nDone"),
    ("```inline``` code", "inline code"),
    // Tables
    ("| a | b |\n|---|:-:|\n| 1 | 2 |\n\nDone.", "a, b.\n1, 2.\n\nDone."),
    ("|a|b|\n|-|-|\n||2|", "a, b.\n2."),
    ("| Is it? | *Yes*! |", "Is it? Yes!"),
    ("|x| is an absolute value", "|x| is an absolute value"),
    ("a \\| b", "a | b"),
    // Links
    ("See [the docs](https://example.com/docs).", "See the docs."),
    ("See [the **docs**](https://example.com \"Title\")!", "See the docs!"),
    ("![A cat](cat.png) sits.", "A cat sits."),
    ("[![Build](b.svg)](https://ci) passes", "Build passes"),
    ("A ![](cat.png) b", "A b"),
    ("[text][ref] and [other][]", "text and other"),
    ("[ref]: https://example.com\nText", "Text"),
    ("Go to <https://example.com/a_b_c>.", "Go to https://example.com/a_b_c."),
    ("Mail <me@mail.org> now", "Mail me@mail.org now"),
    ("https://example.com/a_b_/*c* d", "https://example.com/a_b_/*c* d"),
    ("**https://example.com/x_y**", "https://example.com/x_y"),
    ("[https://a.b/c](https://a.b/c) x", "https://a.b/c x"),
    ("a[i](x) and a[i][j]", "a[i](x) and a[i][j]"),
    ("[sic] and [1] and [x](y)", "[sic] and [1] and [x](y)"),
    ("[pause:300ms] and [pause]", "[pause:300ms] and [pause]"),
    ("wait! [no](/x)", "wait! no"),
    // Notes
    ("True[^1] enough.", "True enough."),
    ("[^1]: A note.", "A note."),
    // HTML
    ("<b>bold</b> and <span class=\"x\">plain</span>", "bold and plain"),
    ("one<br>two<br/>three", "one\ntwo\nthree"),
    ("<p>One</p><p>Two.</p>", "One.\nTwo.\n"),
    ("<ul><li>One</li><li>Two</li></ul>", "One.\nTwo.\n"),
    ("<table><tr><td>a</td><td>b</td></tr></table>", "a, b.\n"),
    ("a <!-- not this --> b", "a b"),
    ("x<script>alert(1 < 2)</script> y", "x y"),
    ("the <script> tag", "the tag"),
    ("a < b > c and Vec<T> and 1<2", "a < b > c and Vec<T> and 1<2"),
    ("if a<b and c>d", "if a<b and c>d"),
    ("<speak>It is <say-as interpret-as=\"date\">May</say-as>.</speak>", "It is May."),
    (
        "Hi <break time=\"1s\"/> you <turn/> and <|im_end|>",
        "Hi <break time=\"1s\"/> you <turn/> and <|im_end|>",
    ),
    (
        "Tom &amp; Jerry &lt;3 &#39;x&#x27; &hellip; &bogus; AT&T R&D",
        "Tom & Jerry <3 'x' \u{2026} &bogus; AT&T R&D",
    ),
    ("a&nbsp;b", "a b"),
    // Escapes
    ("\\*not\\* snake\\_case \\# x", "*not* snake_case # x"),
    ("C:\\new\\_x and C:\\*.txt", "C:\\new_x and C:\\*.txt"),
    // Emoji
    ("Hello 😀 world", "Hello world"),
    ("Great! 🎉🎉", "Great! "),
    ("😀 Hi", "Hi"),
    ("good👍work", "good work"),
    ("family 👨‍👩‍👧‍👦 and 👋🏽 and 🇫🇷 flag", "family and and flag"),
    ("I ❤️ it ☎️ 1️⃣", "I it 1"),
    ("✅ Done\n❌ Not", "Done\nNot"),
    ("© ® ™ ♯ ♭ € ° ½ → …", "© ® ™ ♯ ♭ € ° ½ → …"),
    ("नमस्\u{200d}ते", "नमस्\u{200d}ते"),
    ("- 🥛 milk\n- 🥚 eggs", "milk.\neggs."),
    // Text is left alone
    ("Hello, world!", "Hello, world!"),
    ("Two\nlines\n\nand a paragraph  with  gaps.\n", "Two\nlines\n\nand a paragraph  with  gaps.\n"),
    ("Dr. Lee paid $5.20 on 1/31/2024 at 3:30 pm.", "Dr. Lee paid $5.20 on 1/31/2024 at 3:30 pm."),
    ("v1.2.3, 10^-3, 50%, R&D, a+b, x = y", "v1.2.3, 10^-3, 50%, R&D, a+b, x = y"),
    ("me_too@mail.org wrote", "me_too@mail.org wrote"),
    ("Où est-elle ? « Ici ! »", "Où est-elle ? « Ici ! »"),
    ("今天天气很好。", "今天天气很好。"),
    ("Windows\r\nlines\r\n\r\nhere.\r\n", "Windows\r\nlines\r\n\r\nhere.\r\n"),
    ("", ""),
    ("  \n \n", "  \n \n"),
];

fn cut(text: &str, step: usize) -> String {
    let mut stream = MarkupStream::new();
    let mut out = String::new();
    for piece in text.chars().collect::<Vec<_>>().chunks(step) {
        out += &stream.push(&piece.iter().collect::<String>());
    }
    out + &stream.finish()
}

#[test]
fn says_what_the_table_says() {
    let wrong: Vec<String> = CASES
        .iter()
        .map(|(text, expected)| (text, strip_markup(text), expected))
        .filter(|(_, said, expected)| said != *expected)
        .map(|(text, said, expected)| format!("{text:?}\n   said {said:?}\n wanted {expected:?}"))
        .collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), CASES.len(), wrong.join("\n"));
}

#[test]
fn pieces_of_the_table_do_not_matter() {
    for (text, expected) in CASES {
        for step in [1, 2, 3, 5, 11] {
            assert_eq!(cut(text, step), *expected, "{text:?} in pieces of {step}");
        }
    }
}

#[test]
fn text_without_markup_does_not_wait() {
    let mut stream = MarkupStream::new();
    assert_eq!(stream.push("Hello there. "), "Hello there. ");
    assert_eq!(stream.push("How are you"), "How are you");
    assert_eq!(stream.push("?\n"), "?\n");
    assert_eq!(stream.push("If x <y then "), "If x <y then ");
    assert_eq!(stream.push("Fine"), "Fine");
    assert_eq!(stream.finish(), "");
    assert!(matches!(strip_markup("Nothing to do here."), Cow::Borrowed(_)));
}

#[test]
fn a_construct_at_the_limit_and_one_past_it() {
    let comment = |length: usize| format!("<!--{}-->x", "a".repeat(length - 7));
    assert_eq!(strip_markup(&comment(MAX_HOLD)), "x");
    assert_eq!(strip_markup(&comment(MAX_HOLD + 1)), comment(MAX_HOLD + 1));
    let mut stream = MarkupStream::new();
    for _ in 0..3 * MAX_HOLD {
        stream.push("[");
        assert!(stream.pending_bytes() <= MAX_HOLD + 4);
    }
}

#[test]
fn a_megabyte_is_read() {
    for unit in [
        "[", "<", "_a ", "*", "`", "<!--", "[a](", "| a |\n", "- a\n", "&a", "😀", "\\", "word ", "~~", "#\n",
    ] {
        let text = unit.repeat(250_000 / unit.len());
        assert!(strip_markup(&text).len() <= text.len() * 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pieces_do_not_matter(
        text in "(\\*{1,3}|_{1,2}|`{1,3}|~~|#{1,2} |- |1\\. |> |\\||\\[|\\]|\\(|\\)|!|<b>|</p>|<|>|&amp;|&|\\\\|https://a\\.b/c|😀|[a-z]{1,4}|[.,:]| |\n){0,40}",
        step in 1usize..9,
    ) {
        prop_assert_eq!(cut(&text, step), strip_markup(&text));
    }

    #[test]
    fn any_text_survives(text in "\\PC{0,120}", step in 1usize..9) {
        prop_assert_eq!(cut(&text, step), strip_markup(&text));
    }

    #[test]
    fn text_without_marks_is_the_same(text in "([A-Za-z]{1,9}|[0-9]{4,6}|[.,;:?'\"()%$€/+=^@-]|[ \n]|é|今|。){0,60}") {
        // Lines that begin like a list, a rule or a link's address are markup.
        prop_assume!(!text.lines().any(|line| line.trim_start().starts_with(['-', '+', '=', ':'])));
        prop_assert_eq!(strip_markup(&text), text.as_str());
    }
}
