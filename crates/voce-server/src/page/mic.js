// Runs beside the audio: gathers 40 ms of the microphone and passes it on.
class Microphone extends AudioWorkletProcessor {
  constructor() {
    super();
    this.size = Math.round(sampleRate / 25);
    this.buffer = new Float32Array(this.size);
    this.filled = 0;
  }

  process(inputs) {
    const channel = inputs[0][0];
    if (!channel) return true;
    for (let i = 0; i < channel.length; i++) {
      this.buffer[this.filled++] = channel[i];
      if (this.filled === this.size) {
        this.port.postMessage(this.buffer, [this.buffer.buffer]);
        this.buffer = new Float32Array(this.size);
        this.filled = 0;
      }
    }
    return true;
  }
}

registerProcessor("microphone", Microphone);
