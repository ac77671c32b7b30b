/** A minimal event emitter. */
export class Emitter<T> {
  private readonly listeners = new Set<(value: T) => void>();

  /** Listen; returns the function that stops listening. */
  on(listener: (value: T) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  emit(value: T): void {
    for (const listener of [...this.listeners]) {
      listener(value);
    }
  }

  clear(): void {
    this.listeners.clear();
  }
}
