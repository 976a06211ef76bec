//! Audio that is longer than an offline model hears at once.

use voce_engine::listener::ListenRequest;

use crate::support::{clip, feed, hear, open, rest};

#[test]
fn long_audio_is_heard_in_windows_that_join() {
    let sentence = clip("long.wav");
    let mut audio = Vec::new();
    while audio.len() < 100 * 16_000 {
        audio.extend_from_slice(&sentence);
    }
    for name in ["tdt", "ctc"] {
        let listener = open(name, 1);
        let heard = hear(&listener, &ListenRequest::default(), &audio);
        let frames = heard.frames();
        assert!(frames.windows(2).all(|f| f[0] <= f[1]), "{name}: in the order of time");
        let last = *frames.last().unwrap() as f64 * 0.08;
        assert!(last > 90.0, "{name}: to the end, not {last}");
        // Around the joins there are about as many tokens as elsewhere: nothing is lost or doubled.
        let count = |from: usize, to: usize| frames.iter().filter(|f| (from..to).contains(*f)).count() as f64;
        for join in [432, 864] {
            let (at, elsewhere) = (count(join, join + 80), count(join - 200, join - 120));
            assert!(at > 0.5 * elsewhere && at < 1.7 * elsewhere, "{name} {join}: {at} {elsewhere}");
        }
        let (sender, mut stream) = listener.listen(&ListenRequest::default()).unwrap();
        feed(sender, &audio, &[12_345, 1, 160_000]);
        assert_eq!(rest(&mut stream), heard, "{name}");
    }
}
