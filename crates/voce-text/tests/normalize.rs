//! English normalisation: a table of what is said, and properties that hold for any text.

use std::borrow::Cow;

use proptest::prelude::*;
use voce_text::normalize_english;

const CASES: &[(&str, &str)] = &[
    // Cardinals
    ("0", "zero"),
    ("I have 3 cats.", "I have three cats."),
    ("13 of 21", "thirteen of twenty-one"),
    ("100", "one hundred"),
    ("It took 365 days.", "It took three hundred sixty-five days."),
    ("1,234", "one thousand two hundred thirty-four"),
    ("1000000", "one million"),
    ("12,345,678", "twelve million three hundred forty-five thousand six hundred seventy-eight"),
    ("7,000,000,000", "seven billion"),
    ("5 million people", "five million people"),
    ("(42)", "(forty-two)"),
    ("007", "zero zero seven"),
    ("Agent 007.", "Agent zero zero seven."),
    ("about 10k users", "about ten thousand users"),
    ("5M views", "five million views"),
    ("1500 people", "one thousand five hundred people"),
    ("12, 13, and 14", "twelve, thirteen, and fourteen"),
    // Decimals and signs
    ("3.14", "three point one four"),
    ("0.5", "zero point five"),
    (".5", "point five"),
    ("1,234.56", "one thousand two hundred thirty-four point five six"),
    ("-5", "minus five"),
    ("It was -12.5 outside.", "It was minus twelve point five outside."),
    ("Pi is 3.14159.", "Pi is three point one four one five nine."),
    ("a score of 9.0!", "a score of nine point zero!"),
    // Ordinals
    ("1st", "first"),
    ("the 2nd time", "the second time"),
    ("22nd", "twenty-second"),
    ("3rd, 4th and 5th", "third, fourth and fifth"),
    ("the 100th", "the one hundredth"),
    ("21st century", "twenty-first century"),
    ("1,000th", "one thousandth"),
    ("12th", "twelfth"),
    // Years
    ("in 1999", "in nineteen ninety-nine"),
    ("2024", "twenty twenty-four"),
    ("in 1066", "in ten sixty-six"),
    ("Since 1776, we", "Since seventeen seventy-six, we"),
    ("in 2005", "in two thousand five"),
    ("2000", "two thousand"),
    ("in 1905.", "in nineteen oh five."),
    ("in 1900", "in nineteen hundred"),
    ("2010 was good", "twenty ten was good"),
    ("by 1200 pieces", "by one thousand two hundred pieces"),
    ("1776 pieces", "one thousand seven hundred seventy-six pieces"),
    ("2000 people", "two thousand people"),
    ("1950 calories", "one thousand nine hundred fifty calories"),
    ("1914-1918", "nineteen fourteen to nineteen eighteen"),
    ("2014-15", "twenty fourteen to fifteen"),
    ("the 1990s", "the nineteen nineties"),
    ("the '80s", "the eighties"),
    ("the 1800s", "the eighteen hundreds"),
    ("the 2000s", "the two thousands"),
    // Dates
    ("2024-01-31", "January thirty-first, twenty twenty-four"),
    ("1/31/2024", "January thirty-first, twenty twenty-four"),
    ("31/1/2024", "January thirty-first, twenty twenty-four"),
    ("12/25/99", "December twenty-fifth, nineteen ninety-nine"),
    ("31 Jan 2024", "the thirty-first of January, twenty twenty-four"),
    ("the 4th of July", "the fourth of July"),
    ("January 31st", "January thirty-first"),
    ("Jan. 31, 2024", "January thirty-first, twenty twenty-four"),
    ("March 3", "March third"),
    ("on May 5, 1821.", "on May fifth, eighteen twenty-one."),
    ("Sept. 11, 2001", "September eleventh, two thousand one"),
    ("June 2023", "June twenty twenty-three"),
    ("Dec 1999", "December nineteen ninety-nine"),
    ("2024-13-45", "twenty twenty-four-thirteen-forty-five"),
    // Times
    ("3:30 pm", "three thirty PM"),
    ("15:45", "fifteen forty-five"),
    ("at 9:05 AM", "at nine oh five AM"),
    ("12:00", "twelve o'clock"),
    ("3:00 p.m.", "three PM."),
    ("at 5pm today", "at five PM today"),
    ("at 5 p.m. we left", "at five PM we left"),
    ("At 6 a.m. She rose.", "At six AM. She rose."),
    ("00:15", "zero fifteen"),
    ("14:00", "fourteen hundred"),
    ("10:30:15", "ten thirty and fifteen seconds"),
    ("a 16:9 screen", "a sixteen to nine screen"),
    ("odds of 3:1", "odds of three to one"),
    // Money
    ("$5.20", "five dollars and twenty cents"),
    ("$1", "one dollar"),
    ("$1.01", "one dollar and one cent"),
    ("$0.50", "fifty cents"),
    ("$100.00", "one hundred dollars"),
    ("£3m", "three million pounds"),
    ("€1,000.50", "one thousand euros and fifty cents"),
    ("$3.5 billion", "three point five billion dollars"),
    ("£2.50", "two pounds and fifty pence"),
    ("£1.01", "one pound and one penny"),
    ("$5k", "five thousand dollars"),
    ("¥500", "five hundred yen"),
    ("100 €", "one hundred euros"),
    ("20 USD", "twenty US dollars"),
    ("-$5", "minus five dollars"),
    ("$5-$10", "five to ten dollars"),
    ("$10–20", "ten to twenty dollars"),
    ("It costs $9.99.", "It costs nine dollars and ninety-nine cents."),
    ("US$40", "forty US dollars"),
    ("$1.234", "one point two three four dollars"),
    // Percent
    ("50%", "fifty percent"),
    ("3.5 %", "three point five percent"),
    ("10-20%", "ten to twenty percent"),
    ("-2%", "minus two percent"),
    ("100% sure", "one hundred percent sure"),
    // Units
    ("5 km", "five kilometers"),
    ("1 km", "one kilometer"),
    ("70kg", "seventy kilograms"),
    ("20°C", "twenty degrees Celsius"),
    ("-5 °F", "minus five degrees Fahrenheit"),
    ("60 mph", "sixty miles per hour"),
    ("100 km/h", "one hundred kilometers per hour"),
    ("16 GB", "sixteen gigabytes"),
    ("1.5 GHz", "one point five gigahertz"),
    ("10-20 km", "ten to twenty kilometers"),
    ("300 ms", "three hundred milliseconds"),
    ("50 m²", "fifty square meters"),
    ("6 ft", "six feet"),
    ("a 90° turn", "a ninety degrees turn"),
    ("a 5-km run", "a five-kilometer run"),
    ("2 min", "two minutes"),
    ("1,500 mg", "one thousand five hundred milligrams"),
    // Fractions
    ("1/2", "one half"),
    ("3/4 cup", "three quarters cup"),
    ("2 1/2", "two and a half"),
    ("1 3/4", "one and three quarters"),
    ("½", "one half"),
    ("2½ cups", "two and a half cups"),
    ("2/3", "two thirds"),
    ("1/8", "one eighth"),
    ("5 1/8", "five and an eighth"),
    ("24/7", "twenty-four seven"),
    ("5/5", "five out of five"),
    ("22/7", "twenty-two over seven"),
    // Phone numbers and digit strings
    ("555-1234", "five five five, one two three four"),
    ("555-123-4567", "five five five, one two three, four five six seven"),
    ("(555) 123-4567", "five five five, one two three, four five six seven"),
    ("+1 555 123 4567", "plus one, five five five, one two three, four five six seven"),
    ("+44 20 7946 0958", "plus four four, two zero, seven nine four six, zero nine five eight"),
    ("5551234567", "five five five one two three four five six seven"),
    // Roman numerals
    ("Henry VIII", "Henry the eighth"),
    ("World War II", "World War two"),
    ("Louis XIV's court", "Louis the fourteenth's court"),
    ("Queen Elizabeth II", "Queen Elizabeth the second"),
    ("Chapter IV", "Chapter four"),
    ("King Charles I was", "King Charles the first was"),
    ("Pope John Paul II", "Pope John Paul the second"),
    ("Charles I think", "Charles I think"),
    ("World War I ended", "World War one ended"),
    ("Act III, Scene II", "Act three, Scene two"),
    ("Mix and DIV", "Mix and DIV"),
    // Abbreviations
    ("Mr. Smith", "Mister Smith"),
    ("Mrs. Jones and Ms. Lee", "Missus Jones and Ms Lee"),
    ("Dr. Who", "Doctor Who"),
    ("Mr Smith", "Mister Smith"),
    ("St. John", "Saint John"),
    ("on Main St. today", "on Main Street today"),
    ("12 Elm Dr.", "twelve Elm Drive."),
    ("cats vs. dogs", "cats versus dogs"),
    ("cats vs dogs", "cats versus dogs"),
    ("apples, etc.", "apples, et cetera."),
    ("apples, etc. are", "apples, et cetera are"),
    ("fruit, e.g. apples", "fruit, for example apples"),
    ("i.e., now", "that is, now"),
    ("No. 5", "number five"),
    ("He said no. Then left.", "He said no. Then left."),
    ("approx. 10", "approximately ten"),
    ("Apple Inc. is", "Apple Incorporated is"),
    ("Prof. Plum", "Professor Plum"),
    ("see p. 12", "see page twelve"),
    ("Martin King Jr. spoke", "Martin King Junior spoke"),
    ("Mt. Everest", "Mount Everest"),
    // Acronyms stay
    ("NASA and the FBI", "NASA and the FBI"),
    ("the U.S. team", "the U.S. team"),
    // Addresses
    (
        "https://www.example.com/a-b?x=1",
        "w w w dot example dot com slash a dash b question mark x equals one",
    ),
    ("Visit example.com.", "Visit example dot com."),
    ("see docs.rs or kyutai.org/tts", "see docs.rs or kyutai dot org slash tts"),
    ("me@mail.org", "me at mail dot org"),
    ("john.smith@example.co.uk!", "john dot smith at example dot co dot uk!"),
    ("Yes.In truth", "Yes.In truth"),
    // Symbols
    ("salt & pepper", "salt and pepper"),
    ("R&D", "R and D"),
    ("2 + 2 = 4", "two plus two equals four"),
    ("a+b", "a plus b"),
    ("#1", "number one"),
    ("#speech", "hashtag speech"),
    ("meet @ noon", "meet at noon"),
    ("ask @kyutai", "ask at kyutai"),
    ("C++ and C#", "C plus plus and C sharp"),
    ("x² + y³", "x squared plus y cubed"),
    ("~5 minutes", "about five minutes"),
    ("± 3", "plus or minus three"),
    ("> 10", "greater than ten"),
    ("3 × 4", "three by four"),
    ("10^6", "ten to the power of six"),
    // Ranges, versions, sizes
    ("10-20", "ten to twenty"),
    ("pages 5–7", "pages five to seven"),
    ("3.14.1", "three point fourteen point one"),
    ("v2.0", "version two point zero"),
    ("version v1.2.3", "version one point two point three"),
    ("192.168.0.1", "one hundred ninety-two point one hundred sixty-eight point zero point one"),
    ("1920x1080", "one thousand nine hundred twenty by one thousand eighty"),
    ("a 10-year-old", "a ten-year-old"),
    ("1-2-3", "one-two-three"),
    // Letters and digits together
    ("MP3", "MP three"),
    ("4K and 3D", "four K and three D"),
    ("COVID-19", "COVID nineteen"),
    ("B2B", "B two B"),
    ("5G", "five G"),
    ("A380", "A three hundred eighty"),
    ("Seat 7B", "Seat seven B"),
    ("1.4B people", "one point four billion people"),
    // In sentences
    ("open 9am-5pm, or 9:00-17:00", "open nine AM to five PM, or nine o'clock to seventeen hundred"),
    ("12 Main St. They moved.", "twelve Main Street. They moved."),
    ("Visit St. John there", "Visit Saint John there"),
    ("1600 Penn Ave. NW", "one thousand six hundred Penn Avenue NW"),
    ("or ~50°F", "or about fifty degrees Fahrenheit"),
    ("~$5", "about five dollars"),
    ("He's 6'2\" tall", "He's six foot two tall"),
    ("Malcolm X spoke", "Malcolm X spoke"),
    ("10^-3", "ten to the power of minus three"),
    ("$20/hr", "twenty dollars per hour"),
    ("30 min/day", "thirty minutes per day"),
    ("day/night and/or", "day/night and/or"),
    ("99¢", "ninety-nine cents"),
    ("in 9.58s", "in nine point five eight seconds"),
    ("5ft 10in", "five feet ten inches"),
    ("2x faster", "two times faster"),
    ("a 4x4", "a four by four"),
    ("No. I won't.", "No. I won't."),
    ("shrank 4.3% in Q3 2010", "shrank four point three percent in Q three twenty ten"),
    // Other text is left alone
    ("Hello, world!", "Hello, world!"),
    ("Où est-elle ?", "Où est-elle ?"),
    ("今天天气很好", "今天天气很好"),
    ("well-known (yes) - really", "well-known (yes) - really"),
    ("", ""),
];

#[test]
fn says_what_the_table_says() {
    let wrong: Vec<String> = CASES
        .iter()
        .map(|(text, expected)| (text, normalize_english(text), expected))
        .filter(|(_, said, expected)| said != *expected)
        .map(|(text, said, expected)| format!("{text:?}\n   said {said:?}\n wanted {expected:?}"))
        .collect();
    assert!(CASES.len() >= 150);
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), CASES.len(), wrong.join("\n"));
}

#[test]
fn what_was_said_stays_said() {
    for (text, _) in CASES {
        let once = normalize_english(text);
        assert_eq!(normalize_english(&once), once, "{text:?}");
    }
}

#[test]
fn untouched_text_is_borrowed() {
    assert!(matches!(normalize_english("Nothing to do here, at all."), Cow::Borrowed(_)));
}

#[test]
fn a_megabyte_is_read() {
    for unit in ["1", "1,", "$5 ", "a.b", "1/2/", "word ", "@", "12:30 ", "-1"] {
        let text = unit.repeat(1_000_000 / unit.len() / 4);
        assert!(!normalize_english(&text).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn never_panics(text in "\\PC{0,80}") {
        normalize_english(&text);
    }

    #[test]
    fn no_digit_is_left(text in "([0-9]{1,4}|[a-zA-Z]{1,4}|[ .,:/$%#@+&°€£–()'-]|st|th|am|pm|km|Jan|No\\.|½){0,25}") {
        let said = normalize_english(&text);
        prop_assert!(!said.bytes().any(|byte| byte.is_ascii_digit()), "{} from {}", said, text);
    }

    #[test]
    fn plain_words_are_left_alone(words in prop::collection::vec("[a-z]{1,9}", 0..12)) {
        let text = words.join(" ");
        prop_assume!(!words.iter().any(|word| word == "vs"));
        prop_assert_eq!(normalize_english(&text), text.as_str());
    }
}
