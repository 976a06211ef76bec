//! Packed weights are kept between runs, give the same audio, and cost only time when they are damaged.

mod support;

use support::{Empty, folder};
use voce_engine::speaker::SpeakerOptions;
use voce_engine::store::{Settings, Store};
use voce_engine::{SpeakRequest, Speaker};
use voce_nn::Precision;

fn say(store: &Store, precision: Precision) -> Vec<f32> {
    let options = SpeakerOptions::default().with_precision(Some(precision)).with_threads(1);
    let speaker = Speaker::open(store, folder("lsd").to_str().unwrap(), &options).unwrap();
    let voice = speaker.voice("voice").unwrap();
    let request =
        SpeakRequest::default().with_voice(voice.into()).with_temperature(Some(0.0)).with_max_frames(Some(4));
    let chunks: Result<Vec<_>, _> = speaker.speak("Go and look.", &request).unwrap().collect();
    chunks.unwrap().into_iter().flat_map(|c| c.samples).collect()
}

fn kept(store: &Store) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(store.packed_dir()).map_or(vec![], |d| d.map(|e| e.unwrap().path()).collect());
    files.sort();
    files
}

#[test]
fn the_second_start_reads_what_the_first_packed() {
    let empty = Empty::new();
    let store = Store::new(Settings { keep_packed: Some(0), ..empty.store.settings().clone() });
    for precision in [Precision::Int8, Precision::Int4] {
        let plain = say(&empty.store, precision);
        assert!(kept(&empty.store).len() < 2, "a store that keeps nothing keeps nothing");
        let first = say(&store, precision);
        let files = kept(&store);
        let sizes: Vec<u64> = files.iter().map(|f| f.metadata().unwrap().len()).collect();
        assert!(!plain.is_empty() && first == plain, "{precision}");
        assert!(say(&store, precision) == plain, "{precision} from the file");
        assert_eq!(kept(&store), files, "no other file comes");
        for (file, size) in files.iter().zip(sizes) {
            assert_eq!(file.metadata().unwrap().len(), size);
            std::fs::write(file, vec![7; size as usize / 2]).unwrap();
        }
        assert!(say(&store, precision) == plain, "{precision} after damage");
    }
    assert_eq!(kept(&store).len(), 2, "a file per precision");
}

#[test]
fn a_flipped_bit_is_never_heard_and_is_mended() {
    let empty = Empty::new();
    let store = Store::new(Settings { keep_packed: Some(0), ..empty.store.settings().clone() });
    let plain = say(&store, Precision::Int8);
    let [file] = &kept(&store)[..] else { panic!("one file") };
    let whole = std::fs::read(file).unwrap();
    for at in [whole.len() / 3, whole.len() / 2, whole.len() - 1] {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x40;
        std::fs::write(file, flipped).unwrap();
        assert!(say(&store, Precision::Int8) == plain, "a bit of byte {at}");
        // The speaker waits for what it writes before it is gone.
        assert!(std::fs::read(file).unwrap() == whole, "byte {at} is right again");
    }
}
