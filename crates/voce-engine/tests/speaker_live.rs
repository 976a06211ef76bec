//! Text that arrives piece by piece.

mod support;

use support::{Dice, Talker, audio, beside, exact, same, until_end};

#[test]
fn the_first_sentence_is_heard_before_the_text_is_finished() {
    for options in [exact(), beside()] {
        let t = Talker::new("lsd4", &options);
        let request = t.request();
        let (first, second) = (t.say("Look at the water!", &request), t.say("It runs fast.", &request));
        let (mut text, mut stream) = t.speaker.speak_live(&request).unwrap();
        text.push("Look at").unwrap();
        text.push(" the water! It").unwrap();
        let mut heard = Vec::new();
        while heard.len() < first.len() {
            heard.extend(stream.next().unwrap().unwrap().samples);
        }
        same("the first sentence", &heard, &first);
        text.push(" runs fast").unwrap();
        text.push(".").unwrap();
        text.finish().unwrap();
        same("the second sentence", &audio(&mut stream), &second);
    }
}

#[test]
fn where_the_text_is_cut_does_not_matter() {
    let t = Talker::new("drifting", &exact());
    let request = t.request().with_temperature(Some(0.4)).with_seed(5);
    let text = "Go and look. “What is it?”, she said — and I don’t know.[pause:120ms] It is a long way down! So, no.";
    let live = |pieces: &[&str]| {
        let (mut sender, mut stream) = t.speaker.speak_live(&request).unwrap();
        pieces.iter().for_each(|p| sender.push(p).unwrap());
        sender.finish().unwrap();
        audio(&mut stream)
    };
    let whole = live(&[text]);
    let mut dice = Dice::new(11);
    for round in 0..8 {
        let (mut pieces, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let n = rest.char_indices().nth(1 + dice.below(1 + round * 4)).map_or(rest.len(), |(i, _)| i);
            let (piece, after) = rest.split_at(n);
            pieces.push(piece);
            rest = after;
        }
        same(&format!("{} pieces", pieces.len()), &live(&pieces), &whole);
    }
}

#[test]
fn nothing_to_say_is_an_error() {
    let t = Talker::new("lsd4", &exact());
    for text in ["", "   \n"] {
        let Err(e) = t.speaker.speak(text, &t.request()) else { panic!("'{text}' was spoken") };
        assert_eq!(e.code(), "bad_text");
        let (mut sender, mut stream) = t.speaker.speak_live(&t.request()).unwrap();
        sender.push(text).unwrap();
        sender.finish().unwrap();
        let (heard, end) = until_end(&mut stream);
        assert!(heard.is_empty());
        assert_eq!(end.unwrap_err().code(), "bad_text");
        assert!(stream.next().is_none());
    }
    // A sender that is dropped says no more, and that is no error.
    let (sender, mut stream) = t.speaker.speak_live(&t.request()).unwrap();
    drop(sender);
    assert!(stream.next().is_none());
}

#[test]
fn text_that_finds_no_room_is_kept_without_blocking_its_sender() {
    let t = Talker::new("lsd4", &exact());
    let request = t.request();
    let one = t.say("Look at the water!", &request).len();
    let (mut sender, mut stream) = t.speaker.speak_live(&request).unwrap();
    // Nobody reads: the model pauses when enough audio waits, and then the queue of text fills.
    let mut sentences = 1;
    while sender.try_push("Look at the water! ").unwrap() {
        sentences += 1;
        assert!(sentences < 10_000, "the queue has no end");
    }
    assert!(!sender.try_flush().unwrap());
    let reader = std::thread::spawn(move || audio(&mut stream).len());
    while !sender.try_finish().unwrap() {
        std::thread::yield_now();
    }
    drop(sender);
    assert_eq!(reader.join().unwrap(), sentences * one);
}

#[test]
fn pieces_pushed_without_waiting_are_spoken_as_others_are() {
    let t = Talker::new("lsd4", &exact());
    let request = t.request();
    let live = |waiting: bool| {
        let (mut sender, mut stream) = t.speaker.speak_live(&request).unwrap();
        for piece in ["Look at", " the water! It", " runs fast."] {
            if waiting {
                sender.push(piece).unwrap();
            } else {
                while !sender.try_push(piece).unwrap() {}
            }
        }
        if waiting {
            sender.finish().unwrap();
        } else {
            while !sender.try_finish().unwrap() {}
            drop(sender);
        }
        audio(&mut stream)
    };
    same("text pushed without waiting", &live(false), &live(true));
    let (mut sender, mut stream) = t.speaker.speak_live(&request).unwrap();
    assert!(sender.try_finish().unwrap());
    drop(sender);
    assert_eq!(until_end(&mut stream).1.unwrap_err().code(), "bad_text");
}

#[test]
fn a_bad_tag_ends_the_stream_with_an_error_after_the_good_part() {
    for options in [exact(), beside()] {
        let t = Talker::new("lsd4", &options);
        for lockstep in [1, 8] {
            let request = t.request().with_lockstep(lockstep);
            let good = [t.say("Look at the water!", &request), t.say("It runs fast.", &request)].concat();
            let (mut sender, mut stream) = t.speaker.speak_live(&request).unwrap();
            sender.push("Look at the water! It runs fast. So [pause:soon] it is. And more. ").ok();
            let (heard, end) = until_end(&mut stream);
            same("the good part", &heard, &good);
            let e = end.unwrap_err();
            assert_eq!(e.code(), "bad_text");
            assert!(e.to_string().contains("[pause:soon]"), "{e}");
            assert!(stream.next().is_none());
        }
        let Err(e) = t.speaker.speak("So [pause:soon] it is.", &t.request()) else { panic!("spoken") };
        assert_eq!(e.code(), "bad_text");
    }
}

#[test]
fn a_book_is_read_as_it_comes() {
    let t = Talker::new("drifting", &exact());
    let request = t.request().with_max_tokens(400).with_max_frames(Some(60));
    let book = "Go and look, it is a long way down to the water side. ".repeat(400);
    assert_eq!(t.say(&book, &request).len(), 60 * 192);
    // A bad tag far into a long text is an error of the stream, or of the request.
    let mut stream = t.speaker.speak(&format!("{book}[pause:soon]"), &request).unwrap();
    assert_eq!(audio(&mut stream).len(), 60 * 192, "the limit comes before the tag");
}
